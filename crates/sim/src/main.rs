//! `copyhold-simulate`: runs histories by seed, and says which one failed and how to see it again.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures itself and chooses fresh seeds")]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use copyhold_sim::{Level, Outcome, Plan, Sabotage, Weather};

const USAGE: &str = "\
copyhold-simulate: crash simulation by seed

  --seeds N      run N histories of each level (default 100)
  --start S      from this seed on (default: a fresh one)
  --level L      only this level: pool or fs
  --seed X       replay one history
  --weather W    the same weather in every life
  --break R      break a rule on purpose, and see it noticed
";

struct Args {
    seeds: u64,
    start: Option<u64>,
    levels: Vec<Level>,
    weather: Option<Weather>,
    broken: Option<Sabotage>,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(wrong) => {
            eprintln!("{wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if args.seeds > 1 {
        // A failure is told once, by its seed; replaying that shows where.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let start = args.start.unwrap_or_else(fresh);
    let failed: u64 = args.levels.iter().map(|level| run_level(*level, start, &args)).sum();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs all seeds of a level; how many failed.
fn run_level(level: Level, start: u64, args: &Args) -> u64 {
    let begin = Instant::now();
    let mut sum = Outcome::default();
    let mut failed = 0;
    let mut told = begin;
    for seed in start..start + args.seeds {
        let plan = Plan {
            weather: args.weather,
            broken: args.broken,
            tell: args.seeds == 1,
            ..Plan::new(level, seed)
        };
        match plan.run() {
            Ok(outcome) => sum.add(&outcome),
            Err(failure) => {
                failed += 1;
                println!("FAILED {failure}");
            }
        }
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let done = seed - start + 1;
            println!("{}: {done} of {} seeds, {failed} failed", level.name(), args.seeds);
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{}: {} seeds from {start} in {seconds:.1} s ({:.1} seeds/s): {} operations, {} crashes, \
         {} recoveries, digest {:016x}, {failed} failed",
        level.name(),
        args.seeds,
        args.seeds as f64 / seconds,
        sum.operations,
        sum.crashes,
        sum.recoveries,
        sum.digest,
    );
    failed
}

fn fresh() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64 >> 10)
}

fn parse(args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut parsed =
        Args { seeds: 100, start: None, levels: Level::ALL.to_vec(), weather: None, broken: None };
    let mut args = args;
    while let Some(name) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{name} wants a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number"));
        match name.as_str() {
            "--seeds" => parsed.seeds = number(value()?)?,
            "--start" => parsed.start = Some(number(value()?)?),
            "--seed" => (parsed.start, parsed.seeds) = (Some(number(value()?)?), 1),
            "--level" => parsed.levels = vec![named(&value()?, &Level::ALL, |l| l.name().into())?],
            "--weather" => {
                parsed.weather = Some(named(&value()?, &Weather::ALL, |w| format!("{w:?}"))?);
            }
            "--break" => {
                parsed.broken = Some(named(&value()?, &Sabotage::all(), Sabotage::name)?);
            }
            _ => return Err(format!("unknown argument {name}")),
        }
    }
    Ok(parsed)
}

fn named<T: Copy>(text: &str, all: &[T], name: impl Fn(T) -> String) -> Result<T, String> {
    let known = || all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", ");
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| format!("{text} is none of {}", known()))
}
