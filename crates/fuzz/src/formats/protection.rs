//! Protection information: names of formats, headers of namespaces, and tuples.

use copyhold_device::pi::{Checks, Command, Format, Header, Tags, Tuple, header_digest};

use super::block;

/// A format of each kind of tuple.
const FORMATS: [&str; 6] = [
    "4096+16:64b",
    "4096+16:64b:type3:sts=48",
    "4096+64:32b:first",
    "4096+8:16b:type1",
    "512+64:16b:type3:sts=32",
    "512+24:64b:sts=7:first",
];

pub(crate) fn protection(data: &[u8]) {
    if let Ok(format) = String::from_utf8_lossy(data).parse::<Format>() {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    header(data);
    for words in FORMATS {
        tuples(&words.parse().expect("a format"), data);
    }
}

/// A header, as it is and with its digest set right.
fn header(data: &[u8]) {
    let mut block: [u8; 4096] = block(data).try_into().expect("one block");
    let zeros = [0; 4096];
    let _ = Header::find([&block, &zeros], 1000);
    let digest = header_digest(&block);
    block[32..48].copy_from_slice(&digest.to_le_bytes());
    if let Some(Ok(header)) = Header::parse(&block) {
        assert_eq!(header.encode(), block);
        assert_eq!(Header::find([&zeros, &block], header.blocks), Some(Ok(header)));
    }
}

/// Bytes as a tuple, and as blocks with metadata, judged by a drive and by a host.
fn tuples(format: &Format, data: &[u8]) {
    let tuple = Tuple::decode(format, data);
    let mut again = [0; 16];
    tuple.encode(format, &mut again);
    assert_eq!(Tuple::decode(format, &again), tuple);

    let blocks = data.len() / (format.data_bytes() + format.metadata_bytes());
    let (content, rest) = data.split_at(blocks * format.data_bytes());
    let metadata = &rest[..blocks * format.metadata_bytes()];
    let tags = Tags { app_mask: u16::MAX, ..Tags::of_birth(format, 7, Some(tuple.guard as u32)) };
    let command = Command { by_device: true, checks: Checks::all(format), tags };
    let drive = command.read(format, 7, content, metadata);
    let host = format.verify(&tags, content, metadata);
    // A host accepts no more than a drive.
    assert!(host.is_err() || drive.is_ok());
}

pub(crate) fn protections() -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = FORMATS.map(|words| words.as_bytes().to_vec()).into();
    for words in FORMATS {
        let format: Format = words.parse().expect("a format");
        let header = Header::new([9; 16], format, 5000).expect("room for a namespace");
        inputs.push(header.encode()[..95].to_vec());
        let content = [0x5a; 4096];
        let tags = Tags::of_birth(&format, 7, Some(70_000));
        let command = Command { by_device: true, checks: Checks::NONE, tags };
        let zeros = vec![0; format.entry_bytes()];
        let metadata = command.write(&format, 7, &[&content], Some(&zeros));
        let metadata = metadata.expect("a drive makes tuples");
        inputs.push([&content[..], &metadata].concat());
        inputs.push(metadata);
    }
    inputs
}
