//! A drive in memory, for tests: it decodes the fields of a command by itself, and judges by
//! [`Command`] as the emulated namespace does.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::command::{Commands, Fields, Queue, Transfer};
use super::identify::tests::Drawn;
use crate::pi::{Checks, Command, Format, Refusal, Status, Tags};

const INVALID_OPCODE: u16 = 0x001;
const BEHIND_THE_END: u16 = 0x080;
const TOO_LONG: u16 = 0x183;
const DO_NOT_RETRY: u16 = 0x4000;

pub(super) struct Model {
    pub(super) pages: Drawn,
    format: Format,
    /// Data and metadata in one command, at most.
    most_bytes: usize,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) data: Vec<u8>,
    pub(super) metadata: Vec<u8>,
    /// Blocks of the drive that cannot be read.
    pub(super) unreadable: BTreeSet<u64>,
    /// Blocks of the drive that are refused as deallocated.
    pub(super) deallocated: BTreeSet<u64>,
    /// Blocks of the drive in one range to deallocate, at most.
    pub(super) most_deallocated: usize,
    /// Commands so far, but those of Identify.
    pub(super) commands: Vec<Fields>,
    /// The answer to the next command.
    pub(super) answer: Option<u16>,
    /// The errno by which the kernel refuses the next command.
    pub(super) errno: Option<i32>,
    /// Whether reads leave the buffer of metadata as it is.
    pub(super) transfers_no_metadata: bool,
}

impl Model {
    /// A drive with a namespace of this format, as one that was just formatted.
    pub(super) fn new(format: Format, blocks: u64, limit: u8) -> Arc<Model> {
        let mut pages = Drawn::new(&format, blocks);
        pages.controller[77] = limit;
        let state = State {
            data: vec![0; blocks as usize * format.data_bytes()],
            metadata: vec![0xff; blocks as usize * format.metadata_bytes()],
            unreadable: BTreeSet::new(),
            deallocated: BTreeSet::new(),
            most_deallocated: usize::MAX,
            commands: Vec::new(),
            answer: None,
            errno: None,
            transfers_no_metadata: false,
        };
        let most_bytes = if limit == 0 { usize::MAX } else { 4096 << limit };
        Arc::new(Model { pages, format, most_bytes, state: Mutex::new(state) })
    }

    fn identify(&self, fields: &Fields, transfer: Transfer<'_>) -> u16 {
        let Transfer::ToHost { data, .. } = transfer else { return Status::InvalidField.code() };
        let page = match fields.high[0] {
            0 => &self.pages.namespace,
            1 => &self.pages.controller,
            5 => &self.pages.extended,
            _ => return Status::InvalidField.code(),
        };
        data.copy_from_slice(page);
        0
    }

    /// The blocks of a read or write, and its command.
    fn decode(&self, fields: &Fields) -> (u64, u64, Command) {
        let [low, high, control, _, tag, app] = fields.high.map(u64::from);
        let bit = |nth: u32| control >> nth & 1 != 0;
        let field =
            u128::from(tag) | u128::from(fields.low[1]) << 32 | u128::from(fields.low[0]) << 64;
        let bits = self.format.reference_bits();
        let tags = Tags {
            app: app as u16,
            app_mask: (app >> 16) as u16,
            storage: (field >> bits) as u64,
            reference: (field & ((1 << bits) - 1)) as u64,
        };
        let checks = Checks { guard: bit(28), app: bit(27), reference: bit(26), storage: bit(24) };
        let command = Command { by_device: bit(29), checks, tags };
        (low | high << 32, (control & 0xffff) + 1, command)
    }

    fn transfer(&self, state: &mut State, fields: &Fields, transfer: Transfer<'_>) -> u16 {
        let (first, blocks, command) = self.decode(fields);
        let format = &self.format;
        let end = first + blocks;
        if end as usize * format.data_bytes() > state.data.len() {
            return BEHIND_THE_END;
        }
        let data_at = first as usize * format.data_bytes()..end as usize * format.data_bytes();
        let metadata_at =
            first as usize * format.metadata_bytes()..end as usize * format.metadata_bytes();
        let wanted = if command.transfers_metadata(format) { metadata_at.len() } else { 0 };
        let (stored, beside) = (&mut state.data[data_at], &mut state.metadata[metadata_at]);
        let answer = match (fields.opcode, transfer) {
            (0x02, Transfer::ToHost { data, metadata }) => {
                self.check_limits(data, metadata, wanted);
                if state.unreadable.range(first..end).next().is_some() {
                    return Status::UnrecoveredRead.code();
                }
                if state.deallocated.range(first..end).next().is_some() {
                    return Status::Deallocated.code() | DO_NOT_RETRY;
                }
                let answer = command.read(format, first, stored, beside);
                if answer.is_ok() {
                    data.copy_from_slice(stored);
                    if !state.transfers_no_metadata {
                        metadata.copy_from_slice(&beside[..wanted]);
                    }
                }
                answer
            }
            (0x01, Transfer::ToDrive { data, metadata }) => {
                self.check_limits(data, metadata, wanted);
                let sent = (wanted > 0).then_some(metadata);
                command.write(format, first, &[data], sent).map(|made| {
                    stored.copy_from_slice(data);
                    beside.copy_from_slice(&made);
                })
            }
            _ => Err(Refusal { status: Status::InvalidField, nth: 0 }),
        };
        answer.map_or_else(|refusal| refusal.status.code() | DO_NOT_RETRY, |()| 0)
    }

    fn check_limits(&self, data: &[u8], metadata: &[u8], wanted: usize) {
        assert_eq!(metadata.len(), wanted, "NVMECMD-D2");
        assert!(data.len() + metadata.len() <= self.most_bytes, "NVMECMD-D1: more than MDTS");
        assert!(metadata.len() <= 4096, "NVMECMD-D1: metadata of more than a page");
    }

    fn deallocate(&self, state: &mut State, transfer: Transfer<'_>) -> u16 {
        let Transfer::ToDrive { data, .. } = transfer else { return Status::InvalidField.code() };
        let blocks = u32::from_le_bytes(data[4..8].try_into().unwrap()) as usize;
        let first = u64::from_le_bytes(data[8..16].try_into().unwrap()) as usize;
        if blocks > state.most_deallocated {
            return TOO_LONG | DO_NOT_RETRY;
        }
        let (data, metadata) = (self.format.data_bytes(), self.format.metadata_bytes());
        state.data[first * data..(first + blocks) * data].fill(0);
        state.metadata[first * metadata..(first + blocks) * metadata].fill(0xff);
        0
    }
}

impl Commands for Arc<Model> {
    fn execute(&self, queue: Queue, fields: &Fields, transfer: Transfer<'_>) -> io::Result<u16> {
        if queue == Queue::Admin {
            return Ok(self.identify(fields, transfer));
        }
        let mut state = self.state.lock();
        state.commands.push(*fields);
        if let Some(errno) = state.errno.take() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if let Some(answer) = state.answer.take() {
            return Ok(answer);
        }
        Ok(match fields.opcode {
            0x00 => 0,
            0x01 | 0x02 => self.transfer(&mut state, fields, transfer),
            0x09 => self.deallocate(&mut state, transfer),
            _ => INVALID_OPCODE,
        })
    }

    fn pause(&self) {}
}
