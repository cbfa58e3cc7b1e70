//! Several clients at once: each a thread with a file of its own.
//!
//! `--size` is that of all files together and `--ops` that of all clients, so that numbers of
//! clients compare. A variant with one client has its plain name; with four it ends in `.c4`.

use std::path::{Path, PathBuf};
use std::thread;

use crate::error::BenchError;
use crate::job::on_fresh;
use crate::meter::Measured;
use crate::sample::Sample;
use crate::target::{Kind, Site, Target};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Clients {
    /// How many clients at once; of several numbers each is run
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: Vec<u32>,
}

impl Clients {
    pub(crate) fn of(clients: u32) -> Clients {
        Clients { clients: vec![clients] }
    }

    /// What a filesystem holds at most, where each number of clients leaves `size` behind.
    pub(crate) fn data_bytes(&self, size: u64) -> u64 {
        size * self.clients.len() as u64
    }

    /// Does `work` with each number of clients, one after the other on one empty filesystem.
    pub(crate) fn round(
        &self,
        site: &Site,
        kind: Kind,
        work: impl Fn(&Target<'_>, u32) -> Result<Vec<Sample>, BenchError>,
    ) -> Result<Vec<Sample>, BenchError> {
        on_fresh(site, kind, |target| {
            let mut samples = Vec::new();
            for &clients in &self.clients {
                samples.extend(work(target, clients)?);
            }
            Ok(samples)
        })
    }
}

/// The name of a variant with so many clients.
pub(crate) fn variant(name: &str, clients: u32) -> String {
    match clients {
        1 => name.to_owned(),
        _ => format!("{name}.c{clients}"),
    }
}

/// The file of one of several clients.
pub(crate) fn path(directory: &Path, clients: u32, client: u32) -> PathBuf {
    directory.join(format!("data.{clients}.{client}"))
}

/// Runs `work` once for each client, all at the same time.
pub(crate) fn together(
    clients: u32,
    work: impl Fn(u32) -> Result<Measured, BenchError> + Sync,
) -> Result<Measured, BenchError> {
    thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> =
            (0..clients).map(|client| scope.spawn(move || work(client))).collect();
        let all = started.into_iter().map(|one| one.join().expect("clients do not panic"));
        all.reduce(|all, one| Ok(all?.beside(one?))).expect("at least one client")
    })
}

#[cfg(test)]
mod tests {
    use copyhold_harness::{HarnessError, Interrupt};

    use super::*;
    use crate::meter;

    #[test]
    fn all_clients_are_counted_and_a_failure_is_told() {
        let interrupt = Interrupt::never();
        let all = together(4, |_| meter::each(5, &interrupt, |_| Ok(()))).unwrap();
        assert_eq!(all.ops(), 20);
        let failed = together(4, |client| match client {
            2 => Err(HarnessError::Interrupted.into()),
            _ => meter::each(5, &interrupt, |_| Ok(())),
        });
        assert!(failed.is_err());
    }
}
