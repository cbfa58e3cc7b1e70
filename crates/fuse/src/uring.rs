//! FUSE over io_uring: a thread for each CPU, bound to it, with a ring of its own.
//!
//! `docs/transport.md` has the theory, the order of steps and what happens when one fails; URING-U1
//! to URING-U4 are explained there. `slot` has the memory that is shared with the kernel, and the
//! lease of it; `ring` the commands and completions; `mailbox` brings answers to the thread that
//! commits them; `queue` is that thread, `plan` its work. Here they are started and ended.

mod mailbox;
mod plan;
mod queue;
mod ring;
pub(crate) mod slot;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, sched_getaffinity};

use self::mailbox::Mailbox;
#[cfg(shuttle)]
pub use self::mailbox::answers;
use self::plan::{Plan, plans};
use crate::desk::Channel;
use crate::device::Device;
use crate::operations::Operations;

/// Values of extended attributes come whole, however small the largest WRITE is.
const PAYLOAD_MIN: usize = 128 << 10;
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// A queue's thread, as its session sees it.
struct Worker<O> {
    mailbox: Arc<Mailbox>,
    begin: Sender<Arc<Channel<O>>>,
    told: Receiver<io::Result<()>>,
    thread: JoinHandle<()>,
    /// For the channel of this thread; open before INIT is answered, as all that may fail.
    device: Option<Device>,
}

/// All threads of a connection. Dropping it ends them, when the connection is gone.
pub(crate) struct Rings<O> {
    workers: Vec<Worker<O>>,
}

impl<O: Operations> Rings<O> {
    /// Starts threads that have all they need, but have not registered it: INIT is not
    /// answered yet. `max_write`: as it will be agreed. `memory`: of all entries that queues keep.
    pub(crate) fn prepare(device: &Device, max_write: u32, memory: usize) -> io::Result<Rings<O>> {
        if (max_write as usize) < PAYLOAD_MIN {
            return Err(io::Error::other("max_write is below 128 KiB"));
        }
        let (queues, allowed) = (possible_cpus()?, allowed_cpus()?);
        Rings::start(device, plans(queues, &allowed, max_write as usize, memory))
    }

    pub(crate) fn start(device: &Device, plans: Vec<Plan>) -> io::Result<Rings<O>> {
        let mut rings = Rings { workers: Vec::new() };
        for plan in plans {
            let (device, for_channel) = (device.another()?, device.another()?);
            let mailbox = Arc::new(Mailbox::new()?);
            let ((begin, begun), (tell, told)) = (channel(), channel());
            let name = format!("fuse-cpu{}", plan.cpu);
            let queue = queue::Start { plan, device, mailbox: Arc::clone(&mailbox) };
            let thread =
                thread::Builder::new().name(name).spawn(move || queue.run(&begun, &tell))?;
            let device = Some(for_channel);
            rings.workers.push(Worker { mailbox, begin, told, thread, device });
        }
        rings.workers.iter().try_for_each(Worker::answer)?;
        Ok(rings)
    }

    /// The ways into the connection for the channels that [`Rings::register`] wants.
    pub(crate) fn take_devices(&mut self) -> Vec<Device> {
        self.workers.iter_mut().filter_map(|worker| worker.device.take()).collect()
    }

    /// After INIT: gives the kernel the entries, and serves requests. After an error the kernel
    /// was instructed to do without; requests that it has sent until then are served.
    pub(crate) fn register(&self, channels: Vec<Arc<Channel<O>>>) -> io::Result<()> {
        assert_eq!(channels.len(), self.workers.len());
        for (worker, channel) in self.workers.iter().zip(channels) {
            worker.begin.send(channel).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        let told: Vec<io::Result<()>> = self.workers.iter().map(Worker::answer).collect();
        told.into_iter().collect()
    }

    /// The connection is gone: waits until the kernel has given everything back.
    pub(crate) fn end(mut self) {
        self.close();
        for Worker { begin, thread, .. } in self.workers.drain(..) {
            drop(begin);
            thread.join().expect("a panic in a thread of a ring aborts");
        }
    }
}

impl<O> Rings<O> {
    fn close(&self) {
        self.workers.iter().for_each(|worker| worker.mailbox.close());
    }
}

impl<O> Drop for Rings<O> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<O> Worker<O> {
    fn answer(&self) -> io::Result<()> {
        self.told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}

fn possible_cpus() -> io::Result<usize> {
    queues_of(&std::fs::read_to_string(POSSIBLE)?)
        .ok_or_else(|| io::Error::other(format!("{POSSIBLE} is not understood")))
}

/// Of which the kernel will take a part.
#[cfg(test)]
pub(crate) fn plan_too_many_queues(max_write: u32) -> io::Result<Vec<Plan>> {
    Ok(plans(possible_cpus()? + 1, &allowed_cpus()?, max_write as usize, 64 << 20))
}

fn allowed_cpus() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// How many queues the kernel has, from its list of possible CPUs such as `0-3,8`.
fn queues_of(possible: &str) -> Option<usize> {
    let last = possible.trim().rsplit([',', '-']).next()?;
    last.parse::<u16>().ok().map(|last| usize::from(last) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_queues_as_cpus_may_come() {
        let read = ["0\n", "0-1\n", "0-3,8-11", "", "none"].map(queues_of);
        assert_eq!(read, [Some(1), Some(2), Some(12), None, None]);
    }
}
