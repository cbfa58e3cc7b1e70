//! A pool that is served to a kernel which is not there.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_fs::{Filesystem, NodeId};
use copyhold_fuse::Spawner;
use copyhold_fuse::loopback::Loopback;
use copyhold_fuse::protocol::{Opcode, Settings, wire};
use copyhold_runtime::Rt;
use copyhold_types::{InodeNo, SubvolId};
use zerocopy::FromBytes;

use super::header;
use crate::base::{SETTLED, close};
use crate::machine::{How, Machine, TURNS_MAX};

/// INIT of Linux 6.17, which offers everything.
pub(super) const USUAL_INIT: [u8; 104] = usual_init();
/// Nodes that are remembered.
const NODES_MAX: usize = 100;
/// The nodes that requests name besides those in answers: inodes of the base, with its subvolumes.
const INODES: u64 = 12;
const SUBVOLS: u32 = 5;

const fn usual_init() -> [u8; 104] {
    let words: [u32; 6] = [104, Opcode::Init as u32, 1, 0, 0, 0];
    let body: [u32; 5] = [wire::MAJOR, wire::MINOR, 1 << 20, u32::MAX, u32::MAX];
    let mut bytes = [0; 104];
    let mut n = 0;
    while n < 24 {
        bytes[n] = words[n / 4].to_ne_bytes()[n % 4];
        n += 1;
    }
    n = 0;
    while n < 20 {
        bytes[40 + n] = body[n / 4].to_ne_bytes()[n % 4];
        n += 1;
    }
    bytes
}

/// Nodes that the kernel could know from earlier answers.
fn nodes() -> Vec<u64> {
    let node = |subvol, ino| NodeId { subvol: SubvolId(subvol), ino: InodeNo(ino) }.raw();
    let inside = (2..=SUBVOLS).flat_map(|subvol| [node(subvol, 1), node(subvol, 2)]);
    (1..=INODES).map(|ino| node(1, ino)).chain(inside).collect()
}

pub(crate) struct Served {
    machine: Machine,
    fs: Arc<Filesystem>,
    connection: Loopback,
    nodes: Vec<u64>,
    unique: u64,
    /// Requests that must be answered.
    unanswered: BTreeSet<u64>,
    /// The content of the last answer.
    heard: Vec<u8>,
}

impl Served {
    /// Agrees with a kernel that sends these bytes first, if that is possible.
    pub(crate) fn start(init: &[u8]) -> Option<Served> {
        let machine = Machine::on(SETTLED.image.clone());
        let fs = machine.open(How::default()).expect("a sound pool opens");
        let operations = Arc::new(copyhold_serve::operations(fs.clone()));
        let spawner: Arc<dyn Spawner> = Arc::new(machine.rt.clone() as Rt);
        let settings = Settings { max_write: 128 << 10, ..copyhold_serve::settings() };
        let connection = Loopback::start(operations, spawner, &settings, init).ok()?;
        let unanswered = BTreeSet::new();
        let (nodes, heard) = (nodes(), Vec::new());
        Some(Served { machine, fs, connection, nodes, unique: 2, unanswered, heard })
    }

    /// With a kernel of today.
    pub(crate) fn usual() -> Served {
        Served::start(&USUAL_INIT).expect("the usual can be agreed on")
    }

    /// A node that the kernel could know.
    pub(crate) fn node(&self, choice: u8) -> u64 {
        self.nodes[usize::from(choice) % self.nodes.len()]
    }

    /// The content of the last answer.
    pub(crate) fn heard(&self) -> &[u8] {
        &self.heard
    }

    /// A request with a header that fits.
    pub(crate) fn request(&mut self, opcode: Opcode, node: u64, args: &[u8]) {
        self.unique += 2;
        let header = header(opcode, self.unique, node, args.len());
        if opcode.expects_reply() {
            self.unanswered.insert(self.unique);
        }
        if !self.send(&[&header, args]) {
            self.unanswered.remove(&self.unique);
        }
    }

    /// Any bytes. Whether they were taken.
    pub(crate) fn send(&mut self, message: &[&[u8]]) -> bool {
        let taken = self.connection.ask(message);
        self.hear();
        taken
    }

    /// Lets the machine work for so many turns.
    pub(crate) fn go_on(&mut self, turns: u64) {
        for _ in 0..turns {
            self.machine.rt.step();
            self.hear();
        }
    }

    /// Waits until everything is answered.
    pub(crate) fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if self.unanswered.is_empty() {
                return;
            }
            assert!(self.machine.rt.step(), "everything waits: {:?}", self.unanswered);
            self.hear();
        }
        panic!("no answer to {:?} after {TURNS_MAX} turns", self.unanswered);
    }

    fn hear(&mut self) {
        while let Some(answer) = self.connection.hear() {
            let (out, body) = wire::OutHeader::read_from_prefix(answer).expect("a whole header");
            assert_eq!(out.len as usize, answer.len(), "the length of an answer");
            assert!(out.error <= 0 && out.error > -4096, "{} is no error", out.error);
            self.unanswered.remove(&out.unique);
            self.heard = body.to_vec();
            // An entry begins with its node.
            if let Ok((entry, _)) = wire::EntryOut::read_from_prefix(body)
                && self.nodes.len() < NODES_MAX
            {
                self.nodes.push(entry.nodeid);
            }
        }
    }

    /// Nothing is left open, and what was written is sound.
    pub(crate) fn end(mut self) {
        self.settle();
        let fs = self.fs.clone();
        drop(self.connection);
        self.machine.run("close", async move {
            let _ = close(&fs).await;
        });
        drop(self.fs);
        self.machine.rt.drop_tasks();
        let report = self.machine.check().expect("the pool is there");
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}
