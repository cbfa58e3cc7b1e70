//! Three tenants on one pool: each in a clone of the same subvolume, each with a limit. One fills
//! its own; the original goes, and its clones stay.
//!
//! `cargo run -p copyhold --example tenants [PATH]`

use copyhold::{CreateOptions, Error, GroupState, OpenOptions, Pool};

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Error> {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| "tenants.img".into());
    Pool::create(&path, &CreateOptions::sized(256 * MIB))?;
    let pool = Pool::open(&path, OpenOptions::default())?;
    pool.enable_quotas()?;

    let root = pool.root();
    let base = root.create_subvolume("base")?;
    base.write("tools", &vec![1; 4 << 20])?;
    for name in ["alice", "bob", "carol"] {
        root.snapshot("base", name)?.set_limit(Some(8 * MIB))?;
    }
    let carol = root.subvolume("carol")?;
    let mut end = 0;
    let refused = loop {
        match carol.write_at("flood", end, &[7; 1 << 16]) {
            Ok(()) => end += 1 << 16,
            Err(error) => break error,
        }
    };
    println!("carol wrote {} KiB, then: {refused}", end >> 10);
    root.write("alice/letter", b"Alice can write all the same")?;

    root.delete_subvolume("base")?;
    pool.sync_subvolumes()?;
    root.sync()?;
    println!("bob reads {} KiB of what base wrote", root.read("bob/tools")?.len() >> 10);
    for group in pool.groups().list()? {
        let (id, used) = (group.id, group.referenced >> 10);
        match (group.state, group.tombstone, group.limits.referenced) {
            (GroupState::Live, _, Some(limit)) => println!("{id}: {used} of {} KiB", limit >> 10),
            (GroupState::Live, _, None) => println!("{id}: {used} KiB"),
            (_, stone, _) => {
                let name = stone.map(|stone| stone.name).unwrap_or_default();
                println!("{id}: {used} KiB, deleted, was {}", String::from_utf8_lossy(&name));
            }
        }
    }
    pool.close()
}
