//! The requests of `copyhold` to the daemon, as they arrive: ioctls on nodes of a mount, most of
//! them with a question about tenants in JSON.

use copyhold_fuse::ask::Command;
use copyhold_fuse::protocol::{Opcode, wire};
use copyhold_serve::control::INFO;
use zerocopy::IntoBytes;

use crate::input::Input;
use crate::requests::Served;

const TENANTS: u32 = Command::exchanging(b'C', 3, (16 << 10) - 8).number();
/// Questions are asked by this one; the others come as often as their place is chosen.
const COMMANDS: [u32; 12] = [
    TENANTS,
    Command::bare(b'C', 1).number(),
    INFO.number(),
    // File flags, version, extended flags, label, trim, shutdown, as in <linux/fs.h>.
    0x8008_6601,
    0x4008_6602,
    0x8008_7601,
    0x801c_581f,
    0x401c_5820,
    0x8100_9431,
    0xc018_5879,
    0x8004_587d,
    TENANTS,
];
const CHECKED: &str = copyhold_serve::control::CHECKED;
/// Tokens in one question.
const TOKENS_MAX: usize = 4;
const QUESTIONS_MAX: usize = 24;
/// The kernel limits requests to this size.
const ROOM_MAX: u32 = (16 << 10) - 8;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut served = Served::usual();
    for _ in 0..QUESTIONS_MAX {
        if input.is_empty() {
            break;
        }
        let command = COMMANDS[usize::from(input.byte()) % COMMANDS.len()];
        let node = served.node(input.byte());
        let room = match input.byte() {
            0 => ROOM_MAX,
            some => u32::from(some) * 16,
        };
        let len = input.word();
        let question = with_tokens(&mut served, node, input.take(len));
        let ioctl = wire::IoctlIn {
            cmd: command,
            in_size: question.len() as u32,
            out_size: room,
            ..Default::default()
        };
        served.request(Opcode::Ioctl, node, &[ioctl.as_bytes(), &question].concat());
        served.settle();
    }
    served.end();
}

/// The question on `own` with a writable token in the place of each `"@?"`: of `own` for `"@@"`,
/// and else of the node that the last byte chooses.
fn with_tokens(served: &mut Served, own: u64, question: &[u8]) -> Vec<u8> {
    let mut text = question.to_vec();
    for _ in 0..TOKENS_MAX {
        let is_place = |part: &[u8]| part.starts_with(b"\"@") && part[3] == b'"';
        let Some(at) = text.windows(4).position(is_place) else { break };
        let node = match text[at + 2] {
            b'@' => own,
            choice => served.node(choice.wrapping_sub(b'0')),
        };
        let token = token(served, node).unwrap_or_default();
        text.splice(at + 1..at + 3, token);
    }
    text
}

/// A token of this node that setxattr(2) has presented.
fn token(served: &mut Served, node: u64) -> Option<Vec<u8>> {
    let question = br#"{"ask":"token"}"#;
    let ioctl = wire::IoctlIn {
        cmd: TENANTS,
        in_size: question.len() as u32,
        out_size: ROOM_MAX,
        ..Default::default()
    };
    served.request(Opcode::Ioctl, node, &[ioctl.as_bytes(), question].concat());
    served.settle();
    let answer = served.heard();
    let begin = answer.windows(11).position(|part| part == b"{\"answer\":\"")? + 11;
    let token = answer.get(begin..begin + 32)?.to_vec();
    let set = wire::SetxattrIn { size: token.len() as u32, ..Default::default() };
    let name = [CHECKED.as_bytes(), &[0]].concat();
    served.request(Opcode::Setxattr, node, &[set.as_bytes(), &name, &token].concat());
    served.settle();
    Some(token)
}

/// One of each question, on the root, on a directory or on a subvolume.
const QUESTIONS: [&str; 32] = [
    r#"{"ask":"token"}"#,
    r#"{"token":"@@","ask":"create","name":[97,98],"umask":18,"groups":["1/7"]}"#,
    r#"{"token":"@@","ask":"snapshot","source":"@0","name":[115],"read_only":true,"groups":[]}"#,
    r#"{"token":"@@","ask":"delete","name":[115,110,97,112],"heir":null}"#,
    r#"{"token":"@@","ask":"delete","name":[115,117,98],"heir":"@0"}"#,
    r#"{"token":"@@","ask":"roll-back","name":[115,117,98],"snapshot":"@<","keep":null}"#,
    r#"{"token":"@@","ask":"roll-back","name":[115],"snapshot":"@<","keep":{"directory":"@1","name":[107]}}"#,
    r#"{"ask":"subvolumes","after":0}"#,
    r#"{"ask":"subvolume"}"#,
    r#"{"ask":"memory","after":0}"#,
    r#"{"ask":"memory-group","shared":false}"#,
    r#"{"token":"@@","ask":"set-memory","shared":false,"change":{"low":4096,"max":"max"}}"#,
    r#"{"token":"@@","ask":"set-memory","shared":true,"change":{"min":"max","weight":0}}"#,
    r#"{"ask":"reclaim-memory","shared":false,"bytes":65536}"#,
    r#"{"ask":"leaving","after":0}"#,
    r#"{"token":"@@","ask":"set-read-only","on":true}"#,
    r#"{"ask":"room"}"#,
    r#"{"token":"@@","ask":"quota-enable","simple":true}"#,
    r#"{"token":"@@","ask":"quota-disable"}"#,
    r#"{"ask":"quota-status"}"#,
    r#"{"ask":"quota-rescan"}"#,
    r#"{"ask":"groups","after":0}"#,
    r#"{"token":"@@","ask":"regroup","change":{"create":{"group":"1/7"}}}"#,
    r#"{"token":"@@","ask":"regroup","change":{"limit":{"group":"0/1","kind":"referenced","limit":10000000}}}"#,
    r#"{"token":"@@","ask":"regroup","change":{"assign":{"child":"0/2","parent":"1/7"}}}"#,
    r#"{"token":"@@","ask":"group-clear-stale"}"#,
    r#"{"ask":"scan","step":"begin"}"#,
    r#"{"ask":"scan","step":{"changes":{"from":"@<","at":null}}}"#,
    r#"{"ask":"scan","step":{"homes":{"inodes":[1,2,99]}}}"#,
    r#"{"ask":"scan","step":{"named":{"directory":1,"inodes":[2],"at":[1,16,0]}}}"#,
    r#"{"ask":"scan","step":{"fresh":{"since":0,"at":null}}}"#,
    r#"{"ask":"scan","step":{"weigh":{"exclusive":true,"dropped":false,"at":null}}}"#,
];

fn asked(command: u8, node: u8, question: &[u8]) -> Vec<u8> {
    let len = (question.len() as u16).to_le_bytes();
    [&[command, node, 0], &len[..], question].concat()
}

pub(crate) fn begin() -> Vec<Vec<u8>> {
    // The root, and a subvolume's root.
    let nodes = [0, 12];
    let mut inputs: Vec<Vec<u8>> = QUESTIONS
        .chunks(7)
        .flat_map(|some| {
            nodes.map(|node| some.iter().flat_map(|text| asked(0, node, text.as_bytes())).collect())
        })
        .collect();
    inputs.push((1..11).flat_map(|command| asked(command, 3, &[0; 28])).collect());
    inputs
}
