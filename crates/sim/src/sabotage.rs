//! Rules that a history breaks on purpose, of whichever layer.

use copyhold_fs as fs;
use copyhold_pool as pool;
use copyhold_volume as volume;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Pool(pool::Sabotage),
    /// Noticed through files only.
    Volume(volume::Sabotage),
    /// Noticed through files only.
    Fs(fs::Sabotage),
}

impl Sabotage {
    pub fn all() -> Vec<Sabotage> {
        let pool = pool::Sabotage::ALL.into_iter().map(Sabotage::Pool);
        let volume = volume::Sabotage::ALL.into_iter().map(Sabotage::Volume);
        let fs = fs::Sabotage::ALL.into_iter().map(Sabotage::Fs);
        pool.chain(volume).chain(fs).collect()
    }

    pub fn name(self) -> String {
        match self {
            Sabotage::Pool(rule) => format!("{rule:?}"),
            Sabotage::Volume(rule) => format!("{rule:?}"),
            Sabotage::Fs(rule) => format!("{rule:?}"),
        }
    }

    pub(crate) fn of_pool(self) -> Option<pool::Sabotage> {
        if let Sabotage::Pool(rule) = self { Some(rule) } else { None }
    }

    pub(crate) fn of_volume(self) -> Option<volume::Sabotage> {
        if let Sabotage::Volume(rule) = self { Some(rule) } else { None }
    }

    pub(crate) fn of_fs(self) -> Option<fs::Sabotage> {
        if let Sabotage::Fs(rule) = self { Some(rule) } else { None }
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

impl From<fs::Sabotage> for Sabotage {
    fn from(rule: fs::Sabotage) -> Sabotage {
        Sabotage::Fs(rule)
    }
}
