//! The job: names that do not exist, with a limit (`on`) and without one (`off`), in turn; on a
//! mount (`mounted`), and with `--process N` without one (`process`).

mod mounted;
mod process;

use copyhold_harness::Interrupt;

use crate::error::BenchError;
use crate::job::{Job, on_fresh};
use crate::sample::{Sample, compared};
use crate::target::{Kind, Site};
use mounted::Arm;
use process::Process;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Names {
    /// Names that are looked up over and over
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    hot: u32,
    /// Look-ups of each of these
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// New names that are looked up once; a third of the limit is looked up before
    #[arg(long, default_value_t = 200_000)]
    create: u64,
    /// The limit of the arm `on`
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1000..))]
    limit: u64,
    #[command(flatten)]
    process: Process,
}

impl Job for Names {
    fn name(&self) -> &'static str {
        "names"
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.hot) * 4096
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
        if self.process.is_asked_for() {
            return self.process.round(site, round, interrupt);
        }
        let mut arms = [("on", format!("names={}", self.limit)), ("off", "names=off".to_owned())];
        if round.is_multiple_of(2) {
            arms.reverse();
        }
        let mut samples = Vec::new();
        for (arm, option) in arms {
            let site = site.with_option(option);
            samples.extend(on_fresh(&site, kind, |target| {
                Arm { names: self, arm, target, interrupt }.run()
            })?);
        }
        let ratios = compared(&samples, "on", "off");
        samples.extend(ratios);
        Ok(samples)
    }
}
