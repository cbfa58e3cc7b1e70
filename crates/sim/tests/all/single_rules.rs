//! Rules of files that random histories meet too seldom. Each has a short history that looks for
//! the fault: it finds nothing in the engine, and finds the fault when the rule is broken.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::{Fault, SimImage, Trigger};
use copyhold_format::item::{LISTS, ORPHAN};
use copyhold_fs::{
    Caller, DirEntry, Entry, FileFlags, Filesystem, FsError, ListFlags, Looked, NodeId, OpenFlags,
    Options, ReadFlags, RenameFlags, Sabotage, SetAttr, WriteFlags, XattrSet,
};
use copyhold_pool::{CreateOptions, OpenOptions, Pool};
use copyhold_sim::Machine;
use copyhold_sim::fs_level::collisions;
use copyhold_types::{BLOCK_BYTES, InodeNo, Key, SubvolId};
use copyhold_volume::quota::{GroupId, Ledger, LimitKind};

const EIO: i32 = 5;
const ROOT: NodeId = NodeId::ROOT;
const BY: &Caller = &Caller::ROOT;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

/// What a look finds wrong.
type Found = Result<(), String>;
type Broken = Option<Sabotage>;

#[track_caller]
fn is_noticed(look: impl Fn(Broken) -> Found, rule: Sabotage) {
    assert_eq!(look(None), Ok(()), "no rule is broken");
    let found = look(Some(rule)).expect_err("nobody notices");
    println!("{rule:?}: {found}");
}

fn expect(holds: bool, wrong: impl FnOnce() -> String) -> Found {
    if holds { Ok(()) } else { Err(wrong()) }
}

// -- a filesystem on a simulated disk ---------------------------------------

fn machine(blocks: u64) -> Machine {
    let machine = Machine::on(7, SimImage::empty(blocks));
    let create = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
    let made = machine.run(async {
        Pool::create(&machine.rt(), &machine.device(), &create).await?;
        let pool = pool(&machine).await;
        Filesystem::format(&pool, BY, 0o755).await?;
        Ok::<(), FsError>(pool.close().await?)
    });
    made.expect("the power is on").expect("it is made");
    machine
}

async fn pool(machine: &Machine) -> Arc<Pool> {
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    Pool::open(machine.rt(), machine.device(), options).await.expect("it opens")
}

/// Opens the filesystem, looks, and closes it.
fn look_with<F: Future<Output = Found>>(
    machine: &Machine,
    options: Options,
    look: impl FnOnce(Arc<Filesystem>) -> F,
) -> Found {
    let looked = machine.run(async {
        let fs = Filesystem::open(pool(machine).await, options).await.expect("it opens");
        let found = look(fs.clone()).await;
        fs.close().await.expect("it closes");
        fs.pool().close().await.expect("it closes");
        found
    });
    looked.expect("the power is on")
}

fn breaking(sabotage: Broken) -> Options {
    Options { sabotage, ..Options::default() }
}

async fn make(fs: &Arc<Filesystem>, dir: NodeId, name: &str) -> Entry {
    let flags = OpenFlags::READ_WRITE;
    fs.create(BY, dir, name.as_bytes(), 0o644, flags, true).await.expect("it is made").0
}

async fn mkdir(fs: &Arc<Filesystem>, name: &str) -> NodeId {
    fs.mkdir(BY, ROOT, name.as_bytes(), 0o755).await.expect("it is made").node
}

async fn set_xattr(fs: &Arc<Filesystem>, node: NodeId, name: &[u8], value: &[u8]) {
    fs.set_xattr(BY, node, name, value, XattrSet::Any, false).await.expect("it is set");
}

/// Owner, a user, group, mask and others, who all may read and write.
fn acl() -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, id) in [(1_u16, u32::MAX), (2, 5), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)] {
        bytes.extend(tag.to_le_bytes().into_iter().chain(6_u16.to_le_bytes()));
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

// -- rights -----------------------------------------------------------------

#[test]
fn a_refused_chown_that_takes_capabilities_is_noticed() {
    let look = |broken| {
        look_with(&machine(8192), breaking(broken), |fs| async move {
            let file = make(&fs, ROOT, "f").await.node;
            set_xattr(&fs, file, CAPABILITY, b"cap").await;
            fs.set_flags(BY, file, FileFlags::APPEND, None).await.expect("root may");
            let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
            let refused = fs.setattr(BY, file, &owner).await;
            assert!(matches!(refused, Err(FsError::NotPermitted(_))), "{refused:?}");
            let left = fs.get_xattr(file, CAPABILITY).await;
            expect(left.is_ok(), || "a refused chown has removed capabilities".into())
        })
    };
    is_noticed(look, Sabotage::StripFirst);
}

#[test]
fn a_limit_that_refuses_chmod_is_noticed() {
    let look = |broken| {
        look_with(&machine(8192), breaking(broken), |fs| async move {
            fs.enable_quotas().await.expect("they are turned on");
            let subvol = fs.create_subvolume(BY, ROOT, b"a", None).await.expect("it is made");
            let file = make(&fs, NodeId { subvol, ino: InodeNo::ROOT }, "f").await.node;
            set_xattr(&fs, file, ACCESS, &acl()).await;
            let group = GroupId::of(subvol);
            let limit = |ledger: &Ledger| ledger.limit(group, LimitKind::Referenced, Some(0));
            fs.change_quotas(limit).await.expect("it is set");
            let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            let done = fs.setattr(BY, file, &mode).await;
            expect(done.is_ok(), || format!("chmod of a file with an ACL: {done:?}"))
        })
    };
    is_noticed(look, Sabotage::GrowAcls);
}

#[test]
fn a_whiteout_that_inherits_no_acl_is_noticed() {
    let look = |broken| {
        look_with(&machine(8192), breaking(broken), |fs| async move {
            let dir = mkdir(&fs, "dir").await;
            set_xattr(&fs, dir, DEFAULT, &acl()).await;
            make(&fs, dir, "f").await;
            let flags = RenameFlags { whiteout: true, ..RenameFlags::default() };
            fs.rename(BY, dir, b"f", dir, b"g", flags).await.expect("it is renamed");
            let made = fs.mknod(BY, dir, b"made", 0o020_000, 0).await.expect("it is made").node;
            let white = fs.lookup(dir, b"f").await.expect("a whiteout").node;
            let made = fs.get_xattr(made, ACCESS).await.expect("it inherits");
            let inherited = fs.get_xattr(white, ACCESS).await;
            let same = inherited.as_ref().is_ok_and(|acl| *acl == made);
            expect(same, || format!("a whiteout has another ACL than a device: {inherited:?}"))
        })
    };
    is_noticed(look, Sabotage::BareWhiteouts);
}

// -- what a mount says ------------------------------------------------------

#[test]
fn access_times_that_readers_did_not_want_are_noticed() {
    let look = |broken| {
        look_with(&machine(8192), breaking(broken), |fs| async move {
            let file = make(&fs, ROOT, "f").await.node;
            fs.write(file, 0, b"content", WriteFlags::default()).await.expect("there is room");
            fs.pool().runtime().sleep(Duration::from_secs(2)).await;
            let before = fs.getattr(file).await.expect("it is there").atime;
            let quiet = ReadFlags { no_atime: true, ..ReadFlags::default() };
            fs.read_with(file, 0, 7, quiet).await.expect("it is read");
            let after = fs.getattr(file).await.expect("it is there").atime;
            expect(before == after, || format!("O_NOATIME: {before:?} became {after:?}"))
        })
    };
    is_noticed(look, Sabotage::AtimeAnyway);
}

#[test]
fn a_mount_that_may_not_write_but_discards_is_noticed() {
    let look = |broken| {
        let options = Options { read_only: true, ..breaking(broken) };
        look_with(&machine(8192), options, |fs| async move {
            let trimmed = fs.trim(0, u64::MAX, 0).await;
            let is_refused = matches!(trimmed, Err(FsError::ReadOnly { .. }));
            expect(is_refused, || format!("FITRIM on a read-only mount: {trimmed:?}"))
        })
    };
    is_noticed(look, Sabotage::TrimReadOnly);
}

// -- content ----------------------------------------------------------------

/// The second mount has nothing in its cache, so it reads the block of the cut from the device.
#[test]
fn r36_tails_that_show_when_a_file_grows_are_noticed() {
    const CUT: u64 = BLOCK_BYTES as u64 + 100;
    let look = |broken| {
        let machine = machine(8192);
        look_with(&machine, Options::default(), |fs| async move {
            let file = make(&fs, ROOT, "f").await.node;
            let bytes = [7; 3 * BLOCK_BYTES];
            fs.write(file, 0, &bytes, WriteFlags::default()).await.expect("there is room");
            Ok(())
        })?;
        look_with(&machine, breaking(broken), |fs| async move {
            let file = fs.lookup(ROOT, b"f").await.expect("it is there").node;
            for size in [CUT, 2 * CUT] {
                let size = SetAttr { size: Some(size), ..SetAttr::default() };
                fs.setattr(BY, file, &size).await.expect("it is set");
            }
            let read = fs.read(file, CUT, CUT as usize).await.expect("it is read").to_vec();
            let shown = read.iter().position(|byte| *byte != 0);
            expect(shown.is_none(), || format!("byte {shown:?} behind the old end shows"))
        })
    };
    is_noticed(look, Sabotage::KeepTails);
}

// -- directories ------------------------------------------------------------

/// Of the root directory, pairs of names have the same hash ([`collisions::PAIRS`]).
fn with_known_hashes() -> Machine {
    let machine = machine(8192);
    let prepared = machine.run(async {
        let pool = pool(&machine).await;
        collisions::prepare(&pool).await.expect("the root is there");
        pool.close().await.expect("it closes");
    });
    prepared.expect("the power is on");
    machine
}

/// A reader that takes one entry at a time goes on within a bucket.
#[test]
fn r41_a_listing_that_skips_names_with_the_same_hash_is_noticed() {
    let look = |broken| {
        look_with(&with_known_hashes(), breaking(broken), |fs| async move {
            for name in collisions::PAIRS.as_flattened() {
                make(&fs, ROOT, name).await;
            }
            let (mut found, mut last) = (Vec::new(), 0);
            loop {
                let (before, after) = (found.len(), last);
                let mut take = |entry: &DirEntry<'_>| {
                    let takes = found.len() == before;
                    if takes {
                        found.push(entry.name.to_vec());
                        last = entry.cookie;
                    }
                    takes
                };
                fs.readdir(ROOT, after, &mut take).await.expect("it is listed");
                if found.len() == before {
                    break;
                }
            }
            let missing = collisions::PAIRS.as_flattened().iter();
            let mut missing =
                missing.filter(|name| !found.iter().any(|one| one == name.as_bytes()));
            expect(missing.next().is_none(), || format!("{} entries only", found.len()))
        })
    };
    is_noticed(look, Sabotage::SkipCollisions);
}

/// NAMES-N1: of two names with one hash each is absent, or not, by itself.
#[test]
fn a_name_that_is_made_does_not_end_the_absence_of_its_twin() {
    let looked = look_with(&with_known_hashes(), breaking(None), |fs| async move {
        let live = |count| expect(fs.names().live() == count, || format!("not {count} entries"));
        let is_absent = async |name: &str| {
            let looked = fs.look(ROOT, name.as_bytes()).await.expect("it is looked up");
            matches!(looked, Looked::Absent(_))
        };
        for [one, other] in collisions::PAIRS {
            let before = fs.names().live();
            expect(is_absent(one).await, || format!("{one} is there"))?;
            live(before + 1)?;
            expect(is_absent(other).await, || format!("{other} is there"))?;
            live(before + 2)?;
            make(&fs, ROOT, one).await;
            expect(!is_absent(one).await, || format!("{one} is absent"))?;
            expect(is_absent(other).await, || format!("{other} is there with {one}"))?;
            live(before + 1)?;
            make(&fs, ROOT, other).await;
            fs.unlink(ROOT, one.as_bytes()).await.expect("it is removed");
            expect(is_absent(one).await, || format!("{one} is there with {other}"))?;
            expect(!is_absent(other).await, || format!("{other} is absent"))?;
            live(before + 1)?;
        }
        Ok(())
    });
    assert_eq!(looked, Ok(()));
}

#[test]
fn a_bound_on_subdirectories_is_noticed() {
    let look = |broken| {
        let options = Options { count_lookups: false, ..breaking(broken) };
        look_with(&machine(131_072), options, |fs| async move {
            let dir = mkdir(&fs, "dir").await;
            for n in 0..65_100 {
                let made = fs.mkdir(BY, dir, format!("{n}").as_bytes(), 0o755).await;
                expect(made.is_ok(), || format!("subdirectory {n}: {made:?}"))?;
            }
            Ok(())
        })
    };
    is_noticed(look, Sabotage::CountSubdirs);
}

/// One read after the other fails: what was counted as a look-up is what was answered.
#[test]
fn look_ups_of_a_listing_that_the_kernel_never_learns_of_are_noticed() {
    // The directory has several leaves, so that some are read behind the first entries.
    const FILES: usize = 12_000;
    let look = |broken| {
        let machine = machine(8192);
        look_with(&machine, Options::default(), |fs| async move {
            for n in 0..FILES {
                let made = make(&fs, ROOT, &format!("{n}")).await.node;
                fs.release(made);
                fs.forget(made, 1);
            }
            fs.pool().flush_all().await.expect("it is flushed");
            Ok(())
        })?;
        let mut failures = 0;
        for nth in 0..40 {
            let disk = &machine.disk;
            let failed = &mut failures;
            look_with(&machine, breaking(broken), |fs| async move {
                let flags = ListFlags { attributes: true, ..ListFlags::default() };
                let mut answered = Vec::new();
                let mut take = |entry: &DirEntry<'_>| {
                    answered.extend(entry.attr.map(|_| entry.node));
                    true
                };
                disk.arm_for_good(Trigger::Read { nth }, Fault::Error(EIO));
                let listed = fs.list(ROOT, 0, flags, &mut take).await;
                disk.disarm();
                *failed += u32::from(answered.len() < FILES);
                // An error is all that the kernel gets.
                let known = if listed.is_ok() { answered } else { vec![] };
                known.iter().for_each(|node| fs.forget(*node, 1));
                let held = fs.inodes_and_lookups().1;
                expect(held == 0, || format!("{held} look-ups behind a read error, {nth} later"))
            })?;
        }
        assert!(failures > 0, "no listing ends with an error");
        Ok(())
    };
    is_noticed(look, Sabotage::ForgetListed);
}

#[test]
fn an_unlinked_file_that_stays_because_its_removal_failed_once_is_noticed() {
    let look = |broken| {
        let machine = machine(65_536);
        look_with(&machine, Options::default(), |fs| async move {
            let file = make(&fs, ROOT, "f").await.node;
            // More extents than a node has room for, even compressed: no two checksums are alike.
            for block in 0..6000_u64 {
                let bytes = block.to_le_bytes().repeat(512);
                let done = fs.write(file, 8192 * block, &bytes, WriteFlags::default()).await;
                done.expect("there is room");
            }
            fs.pool().flush_all().await.expect("it is flushed");
            fs.sync().await.expect("it is synced");
            fs.pool().flush_all().await.expect("it is flushed");
            Ok(())
        })?;
        let (disk, rt) = (&machine.disk, machine.rt());
        look_with(&machine, breaking(broken), |fs| async move {
            let file = fs.lookup(ROOT, b"f").await.expect("it is there").node;
            // The directory has been read; what leads to the file's extents has not.
            disk.arm_for_good(Trigger::Read { nth: 0 }, Fault::Error(EIO));
            fs.unlink(ROOT, b"f").await.expect("it is unlinked");
            fs.forget(file, 1);
            rt.sleep(Duration::from_secs(1)).await;
            disk.disarm();
            rt.sleep(Duration::from_secs(200)).await;
            let root = fs.volumes().subvol(SubvolId::ROOT).expect("it is there");
            let (from, to) = (Key::new(LISTS, ORPHAN, 0), Key::new(LISTS, ORPHAN, u64::MAX));
            let left = fs.volumes().range(&root, from, to, 10).await.expect("it is read").len();
            expect(left == 0, || format!("{left} unlinked files stay"))
        })
    };
    is_noticed(look, Sabotage::ReapOnce);
}
