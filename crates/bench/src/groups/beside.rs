//! A neighbour beside a rogue, with groups of memory and without: data, names and metadata.
//!
//! The same trial as that of the job `rogue`, on two filesystems: `on` protects the neighbour by
//! `low`, `off` has `reclaim=off`, under which no protection counts and dirty data has no parts.
//! Both keep the data of direct reads. `ARM.beside_to_alone.KIND.CALL` has the ratios.

use super::experiment::{Experiment, Place};
use super::group::Group;
use crate::error::BenchError;
use crate::rogue::{RogueKind, Trial};
use crate::sample::Sample;
use crate::size;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Arm {
    On,
    Off,
}

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::On => "on",
            Arm::Off => "off",
        }
    }

    fn option(self) -> &'static str {
        match self {
            Arm::On => "reclaim=proportional",
            Arm::Off => "reclaim=off",
        }
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Beside {
    /// Measure a neighbour beside these kinds of rogues, with groups and without
    #[arg(long, value_enum, value_delimiter = ',')]
    rogue: Vec<RogueKind>,
    /// With groups, or without
    #[arg(long, value_enum, value_delimiter = ',', default_value = "on,off")]
    arms: Vec<Arm>,
    /// `low` of the neighbour with groups: a number with K, M or G
    #[arg(long, default_value = "64M", value_parser = size::parse)]
    low: u64,
    #[command(flatten)]
    trial: Trial,
}

impl Experiment for Beside {
    fn data_bytes(&self) -> u64 {
        if self.rogue.is_empty() { 0 } else { self.trial.data_bytes() }
    }

    fn round(&self, place: &Place<'_>) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        for &rogue in &self.rogue {
            let mut of_rogue = Vec::new();
            for &arm in &self.arms {
                eprintln!("groups: {}: {rogue}", arm.name());
                let options = [arm.option().into(), "data_cache=direct".into()];
                let of_arm = place.with(options, |target| {
                    self.trial.run(target, rogue, place.interrupt, |home| match arm {
                        Arm::On => Group::new(target, home).set("low", self.low),
                        Arm::Off => Ok(()),
                    })
                })?;
                of_rogue.extend(of_arm.into_iter().map(|sample| sample.of(arm.name())));
            }
            samples.extend(by_figure(of_rogue));
        }
        Ok(samples)
    }
}

/// The arms of each figure next to each other: alone, beside the rogue, and their ratio.
fn by_figure(mut samples: Vec<Sample>) -> Vec<Sample> {
    let figures: Vec<String> = samples.iter().map(figure).collect();
    samples.sort_by_key(|sample| {
        let first = figures.iter().position(|one| *one == figure(sample));
        (sample.unit != "us" && sample.unit != "ratio", first)
    });
    samples
}

/// The name behind the arm and the state.
fn figure(sample: &Sample) -> String {
    sample.metric().splitn(3, '.').last().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        beside: Beside,
    }

    #[test]
    fn rogues_have_the_names_of_their_work_and_both_arms_run_without_a_choice() {
        let parsed = |line: &str| Line::try_parse_from(line.split(' ')).map(|line| line.beside);
        assert_eq!(parsed("x").unwrap().data_bytes(), 0);
        let all = parsed("x --rogue write,create,walk,read").unwrap();
        let kinds = [RogueKind::Dirty, RogueKind::Create, RogueKind::List, RogueKind::Read];
        assert_eq!((&all.rogue[..], &all.arms[..]), (&kinds[..], &[Arm::On, Arm::Off][..]));
        assert_eq!(parsed("x --rogue read --arms off").unwrap().arms, [Arm::Off]);
        assert!(parsed("x --rogue reads").is_err());
    }
    #[test]
    fn the_arms_of_a_figure_are_printed_next_to_each_other() {
        let of = |name: &str, unit| Sample { metric: name.into(), unit, value: 1.0 };
        let samples = vec![
            of("on.alone.read.stat.p50", "us"),
            of("on.alone.read.stat.p99", "us"),
            of("on.alone.read.stat.calls", "calls"),
            of("on.beside_to_alone.read.stat.p99", "ratio"),
            of("off.alone.read.stat.p50", "us"),
            of("off.alone.read.stat.p99", "us"),
        ];
        let names: Vec<String> = by_figure(samples).into_iter().map(|one| one.metric).collect();
        let expected = [
            "on.alone.read.stat.p50",
            "off.alone.read.stat.p50",
            "on.alone.read.stat.p99",
            "on.beside_to_alone.read.stat.p99",
            "off.alone.read.stat.p99",
            "on.alone.read.stat.calls",
        ];
        assert_eq!(names, expected);
    }
}
