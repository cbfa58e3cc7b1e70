//! The job: names that do not exist, with a limit (`on`) and without one (`off`), in turn; on a
//! mount (`mounted`), and with `--process N` without one (`process`).

mod mounted;
mod process;

use copyhold_harness::Interrupt;

use crate::error::BenchError;
use crate::job::Job;
use crate::sample::Sample;
use crate::target::{Kind, Site};
use mounted::Mounted;
use process::Process;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Names {
    #[command(flatten)]
    mounted: Mounted,
    #[command(flatten)]
    process: Process,
}

impl Job for Names {
    fn name(&self) -> &'static str {
        "names"
    }

    fn data_bytes(&self) -> u64 {
        self.mounted.data_bytes()
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        (kind != Kind::Copyhold).then_some("it has no limit of names")
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = self.process.round(site, round, interrupt)?;
        samples.extend(self.mounted.round(site, kind, round, interrupt)?);
        Ok(samples)
    }
}
