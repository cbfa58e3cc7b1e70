//! The scenarios that were measured on btrfs in its simple mode, as far as they can be played
//! without files: the scenario says which extents are born and die, the ledger says which owner
//! pays and which call is refused. Names and comments say where we differ on purpose.

use std::collections::BTreeMap;

use copyhold_types::{EpochId, InodeNo, Key, SubvolId, Timestamp, Txg};

use super::*;

mod bugs;
mod enabling;
mod limits;
mod payers;
mod relations;
mod replaced;

const MIB: u64 = 1 << 20;
/// The records of a subvolume, which count in those that hold it.
const RECORDS: u64 = 4096;
const ROOT: u32 = 1;
const A: u32 = 2;
const B: u32 = 3;
const S: u32 = 4;
const T: u32 = 5;

/// Something that was written: one reference that was born with its origin.
#[derive(Clone, Copy, Debug)]
struct Extent {
    origin: u64,
    amount: Amount,
}

/// A pool with subvolumes A and B at the top.
struct Pool {
    ledger: Ledger,
    epochs: BTreeMap<u32, u64>,
    next_epoch: u64,
    residents: Vec<Resident>,
    txg: Txg,
    disk: BTreeMap<Key, copyhold_pool::Value>,
}

fn at(subvol: u32) -> GroupId {
    GroupId::of(SubvolId(subvol))
}

fn group(text: &str) -> GroupId {
    text.parse().unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, QuotaError>) -> &'static str {
    result.unwrap_err().code()
}

impl Pool {
    fn off() -> Pool {
        let top = |id| Resident { subvol: SubvolId(id), holder: Some(SubvolId(1)), origin: None };
        let root = Resident { holder: None, ..top(ROOT) };
        Pool {
            ledger: Ledger::default(),
            epochs: BTreeMap::from([(ROOT, 1), (A, 2), (B, 3)]),
            next_epoch: 4,
            residents: vec![root, top(A), top(B)],
            txg: Txg::FIRST,
            disk: BTreeMap::new(),
        }
    }

    fn on() -> Pool {
        let mut pool = Pool::off();
        pool.enable();
        pool
    }

    fn enable(&mut self) {
        let rows = self.ledger.enable(EpochId(self.next_epoch), self.residents.clone()).unwrap();
        self.log(rows);
    }

    fn disable(&mut self) {
        let rows = self.ledger.disable();
        self.log(rows);
        self.ledger.disabled();
        while self.ledger.wants_sweep() {
            let rows = self.ledger.sweep(100);
            self.log(rows);
        }
    }

    fn log(&mut self, rows: Rows) {
        for (key, edit) in rows {
            match edit {
                copyhold_pool::Edit::Put(value) => drop(self.disk.insert(key, value)),
                copyhold_pool::Edit::Delete => drop(self.disk.remove(&key)),
            }
        }
    }

    fn done(&mut self, result: Result<Rows, QuotaError>) {
        let rows = result.unwrap();
        self.log(rows);
    }

    /// A commit.
    fn close(&mut self) {
        let rows = self.ledger.closing(self.txg);
        self.txg = self.txg.next();
        self.log(rows);
    }

    /// A commit, and the sweeps after it.
    fn sync(&mut self) {
        for _ in 0..9 {
            self.close();
            let rows = self.ledger.sweep(100);
            self.log(rows);
        }
    }

    fn crash(&mut self) -> Vec<Stray> {
        let mut loader = Loader::new();
        self.disk.iter().for_each(|(key, value)| assert!(loader.row(*key, value).unwrap()));
        let live = self.epochs.iter().map(|(owner, epoch)| (EpochId(*epoch), SubvolId(*owner)));
        let (ledger, strays) = loader.finish(self.residents.clone(), live);
        self.ledger = ledger;
        strays
    }

    fn new_epoch(&mut self, subvol: u32) {
        if let Some(before) = self.epochs.insert(subvol, self.next_epoch) {
            self.ledger.end_epoch(EpochId(before));
        }
        let epoch = EpochId(self.next_epoch);
        self.next_epoch += 1;
        self.ledger.begin_epoch(epoch, SubvolId(subvol), InodeNo(1)).unwrap();
    }

    fn try_create(&mut self, id: u32, holder: u32, inherit: Inherit) -> Result<(), QuotaError> {
        let new = Resident { subvol: SubvolId(id), holder: Some(SubvolId(holder)), origin: None };
        let rows = self.ledger.create_subvolume(new, &inherit, None)?;
        self.log(rows);
        self.residents.push(new);
        self.new_epoch(id);
        // Its first leaf was owed; here it has none.
        self.ledger.flushed(SubvolId(id), 1, 0);
        Ok(())
    }

    fn create(&mut self, id: u32, holder: u32) {
        self.try_create(id, holder, Inherit::FromHolder).unwrap();
    }

    fn snapshot(&mut self, origin: u32, id: u32, holder: u32) -> Result<(), QuotaError> {
        let wanted = Request { snapshots: 1, ..Request::default() };
        let mut hold = self.ledger.hold(SubvolId(origin), wanted, Tier::Write)?;
        let holder = Some(SubvolId(holder));
        let new = Resident { subvol: SubvolId(id), holder, origin: Some(SubvolId(origin)) };
        let rows = self.ledger.create_subvolume(new, &Inherit::FromHolder, Some(&mut hold))?;
        self.log(rows);
        self.residents.push(new);
        self.new_epoch(origin);
        self.new_epoch(id);
        Ok(())
    }

    fn delete(&mut self, id: u32, heir: Option<u32>) -> Result<(), QuotaError> {
        let since = Timestamp { secs: 1_700_000_000, nanos: 0 };
        let rows =
            self.ledger.delete_subvolume(SubvolId(id), since, b"gone", heir.map(SubvolId))?;
        self.ledger.forget_inodes(SubvolId(id));
        self.log(rows);
        self.residents.retain(|resident| resident.subvol.0 != id);
        if let Some(epoch) = self.epochs.remove(&id) {
            self.ledger.end_epoch(EpochId(epoch));
        }
        Ok(())
    }

    fn write_amount(&mut self, subvol: u32, amount: Amount) -> Result<Extent, QuotaError> {
        if self.ledger.is_on() && !self.ledger.counts(EpochId(self.epochs[&subvol])) {
            self.new_epoch(subvol);
        }
        let Amount { data, metadata } = amount;
        let wanted = Request { data, metadata, ..Request::default() };
        let mut hold = self.ledger.hold(SubvolId(subvol), wanted, Tier::Write)?;
        let origin = self.epochs[&subvol];
        self.ledger.charge(EpochId(origin), amount, Some(&mut hold)).unwrap();
        assert_eq!(hold.left(), Request::default());
        Ok(Extent { origin, amount })
    }

    fn write(&mut self, subvol: u32, bytes: u64) -> Extent {
        self.write_amount(subvol, Amount::data(bytes)).unwrap()
    }

    fn refused(&mut self, subvol: u32, bytes: u64) -> Exceeded {
        match self.write_amount(subvol, Amount::data(bytes)) {
            Err(QuotaError::Exceeded(exceeded)) => exceeded,
            other => panic!("{other:?}"),
        }
    }

    /// The last reference is gone.
    fn free(&self, extent: Extent) {
        self.ledger.refund(EpochId(extent.origin), extent.amount).unwrap();
    }

    /// Nothing refers to `bytes` of it any more: the rest of it.
    fn free_part(&self, extent: Extent, bytes: u64) -> Extent {
        self.free(Extent { amount: Amount::data(bytes), ..extent });
        Extent { amount: Amount::data(extent.amount.data - bytes), ..extent }
    }

    fn used(&self, id: GroupId) -> u64 {
        self.ledger.show_group(id).unwrap().referenced
    }

    fn data(&self, subvol: u32) -> u64 {
        self.used(at(subvol))
    }

    fn limit(&mut self, id: GroupId, limit: u64) {
        let rows = self.ledger.limit(id, LimitKind::Referenced, Some(limit));
        self.done(rows);
    }

    /// Makes a group and puts members in it.
    fn group(&mut self, text: &str, members: &[&str]) -> GroupId {
        let id = group(text);
        self.done(self.ledger.create(id));
        for member in members {
            self.done(self.ledger.assign(group(member), id));
        }
        id
    }
}
