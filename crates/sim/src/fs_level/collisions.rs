//! Names with the same hash (R41), which random names do not have.
//!
//! Hashes have a key for each subvolume. Here the pool's root has one that is known, and for that
//! a search of some billion names has found pairs that share a bucket. Each name is of the client
//! that it says; so listings of several clients meet in one bucket.

use std::sync::Arc;

use copyhold_format::item::{HashKey, SUBVOL, SubvolItem};
use copyhold_fs::FsError;
use copyhold_pool::{Pool, Tier, Transaction};
use copyhold_types::{Key, SubvolId};

const KEY: HashKey = HashKey([7; 16]);

/// Names whose hashes are the same with the known key.
pub const PAIRS: [[&str; 2]; 6] = [
    ["c1-szrkrsobh7l", "c3-cghvrdquvka"],
    ["c1-a2tjprulzjb", "c2-pz2huwolusf"],
    ["c3-mi6a5crkatx", "c0-yqbk4zod5l5"],
    ["c0-g4pho5fhroq", "c3-hedfhojvcbd"],
    ["c2-oarz254hyah", "c0-7nsqkc6f64t"],
    ["c3-bi6caqduaah", "c3-2imsslis36l"],
];

/// The names of a client that share their bucket with another name.
pub(crate) fn names(client: usize) -> Vec<Vec<u8>> {
    let own = format!("c{client}-");
    let names = PAIRS.iter().flatten().filter(|name| name.starts_with(&own));
    names.map(|name| name.as_bytes().to_vec()).collect()
}

/// Gives the root of a pool that was just formatted the key that is known.
pub async fn prepare(pool: &Arc<Pool>) -> Result<(), FsError> {
    let key = Key::new(SubvolId::ROOT.0.into(), SUBVOL, 0);
    let value = pool.get(Pool::SYSTEM, key).await?.expect("a pool has a root");
    let root = SubvolItem::parse(&value).expect("it was just made");
    let root = SubvolItem { hash_key: KEY, ..root };
    let credit = pool.admit(Tier::Write, 1, 256).await?;
    let mut tx = Transaction::new();
    tx.put(Pool::SYSTEM, key, &root.encode()[..]);
    Ok(pool.apply(credit, tx).map(drop)?)
}

#[cfg(test)]
mod tests {
    use copyhold_format::item::dirent_bucket;

    use super::*;

    #[test]
    fn the_names_of_a_pair_share_a_bucket() {
        for [one, other] in PAIRS.map(|pair| pair.map(str::as_bytes)) {
            assert_eq!(dirent_bucket(&KEY, one), dirent_bucket(&KEY, other));
        }
    }
}
