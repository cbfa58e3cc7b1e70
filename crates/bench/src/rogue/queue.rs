//! Queue: one thread with many asynchronous direct writes of 1 MiB in flight, until the end.

use std::time::Duration;

use super::setting::{Setting, Step, threads};
use crate::direct::{self, Queue, Way};
use crate::error::BenchError;
use crate::meter::{Bounds, Meter};
use crate::places::Places;

const UNIT: usize = 1 << 20;

pub(super) fn deep<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let (depth, stop) = (setting.sizes.depth as usize, setting.stop);
    threads(1, |_| {
        drop(setting.file("queue")?);
        let file = direct::open(&setting.path("queue"), Way::Write)?;
        let mut places = Places::sequential(UNIT, depth as u64, 1);
        // Buffers of a GiB take long to make.
        let mut made = Some(Queue::new(depth, UNIT)?);
        Ok(move || {
            // A failed transfer keeps the queue.
            let queue = made.take().map_or_else(|| Queue::new(depth, UNIT), Ok)?;
            let bounds = Bounds { ops: u64::MAX, time: Duration::MAX };
            let mut meter = Meter::start(bounds, stop);
            made = Some(queue.transfer(&file, Way::Write, &mut places, &mut meter)?);
            Ok(meter.ops())
        })
    })
}
