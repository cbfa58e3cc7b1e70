//! The view of `debug protection`: headers of a namespace, and the tuples of one block.
//!
//! It reads the file or device below the namespace, so that damaged headers and tuples are shown,
//! where a device refuses the request.

use std::ops::Range;
use std::path::Path;

use copyhold_device::pi::{Emulated, Format, Header, Tuple};
use copyhold_device::{DynDevice, FileDevice, OpenMode, nvme};
use copyhold_types::{BLOCK_BYTES, DeviceId, Purpose};
use serde_json::{Map, Value, json};

use super::Machine;
use crate::failure::Failure;

/// Copies of the header, in the last blocks.
const HEADERS: u64 = 2;

/// Both headers, and with `block` its tuples.
pub(crate) fn protection(pool: &Path, block: Option<u64>) -> Result<Value, Failure> {
    if nvme::is_namespace(pool) {
        return Err(Failure::usage(format!(
            "{} is an NVMe namespace: its drive keeps the format and the tuples, and there is no \
             header on it to show; `copyhold info` shows the format",
            pool.display()
        )));
    }
    let machine = Machine::start()?;
    let reactor = machine.executors.reactor();
    let file: DynDevice = FileDevice::open(reactor, DeviceId(0), pool, OpenMode::ReadOnly)?;
    machine.run(async {
        let size = file.geometry().blocks;
        let mut headers = Vec::new();
        for at in size.saturating_sub(HEADERS)..size {
            headers.push(header(&file, at).await);
        }
        let mut shown = Map::from_iter([("headers".to_owned(), headers.into())]);
        if let Some(block) = block {
            shown.insert("tuples".into(), tuples(&machine, &file, block).await?.into());
        }
        Ok(shown.into())
    })
}

async fn header(file: &DynDevice, at: u64) -> Value {
    let parsed = match file.read(at, 1, Purpose::Guard).await {
        Ok(content) => match content.first_chunk::<BLOCK_BYTES>().and_then(Header::parse) {
            Some(parsed) => parsed.map_err(|problem| problem.to_string()),
            None => Err("no header".to_owned()),
        },
        Err(error) => Err(error.to_string()),
    };
    let header = parsed.as_ref().ok();
    let identity = |header: &Header| -> String {
        header.identity.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    json!({
        "at": at,
        "state": parsed.as_ref().map_or_else(|problem| problem.as_str(), |_| "good"),
        "format": header.map(|header| header.format.to_string()),
        "identity": header.map(identity),
        "blocks": header.map(|header| header.blocks),
        "data_blocks": header.map(|header| header.data_blocks),
        "compat": header.map(|header| header.features.compat),
        "ro_compat": header.map(|header| header.features.ro_compat),
        "incompat": header.map(|header| header.features.incompat),
    })
}

/// One row for each tuple of 4 KiB.
async fn tuples(machine: &Machine, file: &DynDevice, block: u64) -> Result<Vec<Value>, Failure> {
    let found = Emulated::find(machine.rt(), file.clone(), OpenMode::ReadOnly).await?;
    let Some(namespace) = found else {
        let text = "there is no header of protection information, and so no tuple";
        return Err(Failure::usage(text.to_owned()));
    };
    let header = namespace.header();
    if block >= header.data_blocks {
        let blocks = header.data_blocks;
        return Err(Failure::usage(format!("there are {blocks} blocks, from 0 on; not {block}")));
    }
    let (at, range) = namespace.place_of_metadata(block);
    let data = file.read(block, 1, Purpose::Guard).await;
    let entry = file.read(at, 1, Purpose::Guard).await?;
    let metadata: Vec<u8> = entry[range.clone()].iter().map(|byte| !byte).collect();
    let format = header.format;
    let rows = metadata.chunks(format.metadata_bytes()).enumerate().map(|(nth, metadata)| {
        let part = nth * format.data_bytes()..(nth + 1) * format.data_bytes();
        let data = data.as_ref().map(|data| &data[part]);
        let place = range.start + nth * format.metadata_bytes();
        row(&format, (at, place), metadata, data.map_err(ToString::to_string))
    });
    Ok(rows.collect())
}

fn row(
    format: &Format,
    (at, place): (u64, usize),
    metadata: &[u8],
    data: Result<&[u8], String>,
) -> Value {
    let range: Range<usize> = format.tuple_range();
    let tuple = Tuple::decode(format, &metadata[range.clone()]);
    let computed = data.map(|data| format.guard_of(data, metadata));
    let state = match &computed {
        _ if tuple.is_escape(format) => "escape: nothing is checked".to_owned(),
        Ok(guard) if *guard == tuple.guard => "guard matches".to_owned(),
        Ok(_) => "guard differs".to_owned(),
        Err(error) => error.clone(),
    };
    let digits = format.guard().bits() as usize / 4;
    json!({
        "at": at,
        "byte": place + range.start,
        "state": state,
        "guard": format!("{:0digits$x}", tuple.guard),
        "guard_of_data": computed.ok().map(|guard| format!("{guard:0digits$x}")),
        "app": tuple.app,
        "storage": tuple.storage,
        "reference": tuple.reference,
    })
}
