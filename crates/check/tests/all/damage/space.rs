//! What is allocated against what is referred to.

use copyhold_check::{FileId, Owner, Problem, Severity};
use copyhold_format::item::{Extent, extent_key};
use copyhold_pool::{LaneClass, Tier, Transaction};
use copyhold_types::{BlockAddr, DeviceId, EpochId, InodeNo, Pointer, Run, SubvolId};

use super::pool::{LONG, SHORT, TABLE, changed, kinds, report, sound};

fn file(ino: InodeNo) -> FileId {
    FileId { subvol: SubvolId::ROOT, ino }
}

#[test]
fn blocks_that_nothing_refers_to_are_leaked() {
    let mut leaked = None;
    let image = changed(&sound(), async |files| {
        let mut reservation = files.pool.reserve(3, Tier::Write).await.unwrap();
        let claims = files.pool.claim(LaneClass::Data, 3, &mut reservation).unwrap();
        leaked = Some(claims[0].run());
        let mut tx = Transaction::new();
        claims.into_iter().for_each(|claim| tx.allocate(claim));
        files.apply(tx).await;
    });
    let report = report(&image);
    assert_eq!(report.worst(), Some(Severity::Leak));
    let problems: Vec<_> = report.problems().cloned().collect();
    assert_eq!(problems, [Problem::Leaked { run: leaked.unwrap() }]);
}

#[test]
fn an_extent_on_free_blocks_dangles() {
    let image = changed(&sound(), async |files| {
        let extent = Extent::parse(&files.get(extent_key(LONG, 32)).await).unwrap();
        let mut tx = Transaction::new();
        tx.release(Pointer { run: extent.pointer.run.slice(4, 2), ..extent.pointer });
        files.apply(tx).await;
    });
    let report = report(&image);
    assert_eq!((kinds(&image), report.worst()), (vec!["dangling"], Some(Severity::AtRisk)));
    let Some(Problem::Dangling { run, by }) = report.problems().next() else {
        panic!("{report:?}");
    };
    assert_eq!((run.blocks, *by), (2, Owner::File { file: file(LONG), block: 32 }));
    assert_eq!(report.findings[0].files[0].path.as_deref(), Some("/long"));
}

#[test]
fn two_extents_on_the_same_blocks_are_told_with_both_files() {
    let image = changed(&sound(), async |files| {
        let long = files.get(extent_key(LONG, 0)).await;
        let extent = Extent::parse(&long).unwrap();
        let mut tx = Transaction::new();
        let short = Extent::parse(&files.get(extent_key(SHORT, 0)).await).unwrap();
        tx.release(short.pointer);
        tx.put(TABLE, extent_key(SHORT, 0), &extent.slice(7, 1).encode()[..]);
        files.apply(tx).await;
    });
    let report = report(&image);
    assert_eq!((kinds(&image), report.worst()), (vec!["twice"], Some(Severity::AtRisk)));
    let Some(Problem::Twice { by, and, .. }) = report.problems().next() else {
        panic!("{report:?}");
    };
    assert_eq!(*by, Owner::File { file: file(SHORT), block: 0 });
    assert_eq!(*and, Some(Owner::File { file: file(LONG), block: 0 }));
    let paths: Vec<_> = report.findings[0].files.iter().map(|file| file.path.clone()).collect();
    assert_eq!(paths.len(), 2);
    assert!(paths.contains(&Some("/long".into())), "{paths:?}");
}

#[test]
fn an_extent_in_the_log_or_beyond_the_device_is_told() {
    for block in [70, 1 << 30] {
        let image = changed(&sound(), async |files| {
            let old = Extent::parse(&files.get(extent_key(SHORT, 0)).await).unwrap();
            let run = Run::new(BlockAddr::new(DeviceId(0), block), 1);
            let pointer = Pointer { run, epoch: EpochId(1), origin: EpochId(1) };
            let mut tx = Transaction::new();
            tx.release(old.pointer);
            let extent = Extent { pointer, ..old };
            tx.put(TABLE, extent_key(SHORT, 0), &extent.encode()[..]);
            files.apply(tx).await;
        });
        assert!(kinds(&image).contains(&"outside"), "{block}");
    }
}
