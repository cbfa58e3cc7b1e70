//! Rules that a history breaks on purpose, of whichever layer.

use copyhold_pool as pool;
use copyhold_volume as volume;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Pool(pool::Sabotage),
    /// Noticed through files only.
    Volume(volume::Sabotage),
}

impl Sabotage {
    pub fn all() -> Vec<Sabotage> {
        let pool = pool::Sabotage::ALL.into_iter().map(Sabotage::Pool);
        pool.chain(volume::Sabotage::ALL.into_iter().map(Sabotage::Volume)).collect()
    }

    pub fn name(self) -> String {
        match self {
            Sabotage::Pool(rule) => format!("{rule:?}"),
            Sabotage::Volume(rule) => format!("{rule:?}"),
        }
    }

    pub(crate) fn of_pool(self) -> Option<pool::Sabotage> {
        match self {
            Sabotage::Pool(rule) => Some(rule),
            Sabotage::Volume(_) => None,
        }
    }

    pub(crate) fn of_volume(self) -> Option<volume::Sabotage> {
        match self {
            Sabotage::Volume(rule) => Some(rule),
            Sabotage::Pool(_) => None,
        }
    }
}

impl From<pool::Sabotage> for Sabotage {
    fn from(rule: pool::Sabotage) -> Sabotage {
        Sabotage::Pool(rule)
    }
}

impl From<volume::Sabotage> for Sabotage {
    fn from(rule: volume::Sabotage) -> Sabotage {
        Sabotage::Volume(rule)
    }
}
