//! `copyhold-simulate`: runs histories by seed, or every short workload with every crash, and
//! reports each failure with the command that repeats it.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures itself and chooses fresh seeds")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use copyhold_device::pi::{Format, FormatError};
use copyhold_format::item::ChecksumMode;
use copyhold_pool::FlushPolicy;
use copyhold_sim::faults::{Fate, Faults, Kind, Point};
use copyhold_sim::fs_level::modes::ByMode;
use copyhold_sim::{Enumeration, Level, Outcome, Plan, Sabotage, Tally, Weather};

const USAGE: &str = "\
copyhold-simulate: crash simulation by seed

  --seeds N      run N histories of each level, of full pools and rogues a tenth (default 100)
  --start S      from this seed on (default: a fresh one)
  --level L      only this level: pool, fs, full or rogue
  --seed X       replay one history
  --weather W    the same weather in every life
  --break R      break a rule on purpose, and see it noticed
  --pi FORMAT    on a device with protection information, as 4096+16:64b
  --grow         the pool becomes larger while clients use it
  --modes M      clients change checksum modes: yes or no, instead of what the seed says
  --flush WHEN   the flush policy: even or threshold (default threshold)
  --stock        each txg writes the space maps that it changed
  --maps         few space maps fit in memory

or every workload of a few operations, with every crash:

  --enumerate L  of L operations, 1 or 2
  --part K/N     only the Kth of N parts, which together are all
  --mode M       the checksum mode of all files: item, guard, offload or none

or a short workload, with each of its requests to the device failing in turn:

  --faults       all of them
  --fault F      one, as write:7:once or flush:0:for-good

--pi FORMAT goes with all of them.
";

const HISTORIES: &[&str] = &[
    "--seeds",
    "--start",
    "--level",
    "--seed",
    "--weather",
    "--break",
    "--pi",
    "--modes",
    "--grow",
    "--flush",
    "--stock",
    "--maps",
];

/// The arguments that each other kind of run heeds, the first of which asks for it.
const OTHERS: [&[&str]; 3] = [
    &["--enumerate", "--part", "--mode", "--break", "--pi"],
    &["--fault", "--pi"],
    &["--faults", "--pi"],
];

struct Args {
    seeds: u64,
    start: Option<u64>,
    levels: Vec<Level>,
    weather: Option<Weather>,
    broken: Option<Sabotage>,
    protection: Option<Format>,
    modes: Option<bool>,
    grows: bool,
    flush: FlushPolicy,
    stock: bool,
    few_maps: bool,
    /// Operations of all workloads, instead of histories.
    enumerate: Option<usize>,
    part: (usize, usize),
    mode: ChecksumMode,
    faults: bool,
    fault: Option<Point>,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(wrong) => {
            eprintln!("{wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if args.faults || args.enumerate.is_some() || args.seeds > 1 && args.fault.is_none() {
        // A failure is told once, by its seed; replaying that shows where.
        std::panic::set_hook(Box::new(|_| {}));
    }
    if let Some(point) = args.fault {
        return play_fault(&faults_on(args.protection), point);
    }
    if args.faults {
        return play_faults(&faults_on(args.protection));
    }
    let start = args.start.unwrap_or_else(fresh);
    if let Some(length) = args.enumerate {
        let all = Enumeration::of_length(length);
        let (broken, protection, mode) = (args.broken, args.protection, args.mode);
        return enumerate(&Enumeration { part: args.part, broken, protection, mode, ..all });
    }
    let failed: u64 = args.levels.iter().map(|level| run_level(*level, start, &args)).sum();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs all seeds of a level; how many failed.
fn run_level(level: Level, start: u64, args: &Args) -> u64 {
    let begin = Instant::now();
    let mut sum = Outcome::default();
    let mut failed = 0;
    let mut told = begin;
    let seeds = match level {
        // One fills a pool, or comes to a limit, many times: that takes as long as ten others.
        Level::Full | Level::Rogue => args.seeds.div_ceil(10),
        Level::Pool | Level::Fs => args.seeds,
    };
    for seed in start..start + seeds {
        let plan = Plan {
            weather: args.weather,
            broken: args.broken,
            protection: args.protection,
            modes: args.modes,
            grows: args.grows,
            flush: args.flush,
            stock: args.stock,
            few_maps: args.few_maps,
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
            println!("{}: {done} of {seeds} seeds, {failed} failed", level.name());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{}: {} seeds from {start} in {seconds:.1} s ({:.1} seeds/s): {} operations, {} crashes, \
         {} recoveries, {} reached, digest {:016x}, {failed} failed",
        level.name(),
        seeds,
        seeds as f64 / seconds,
        sum.operations,
        sum.crashes,
        sum.recoveries,
        sum.reached,
        sum.digest,
    );
    failed
}

fn enumerate(plan: &Enumeration) -> ExitCode {
    let begin = Instant::now();
    let (mut told, mut failures) = (begin, 0);
    let tally = plan.run(|tally| {
        for failure in &tally.failures[failures..] {
            println!("FAILED {failure}");
        }
        failures = tally.failures.len();
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let (done, all) = (tally.families, tally.families_all);
            eprintln!("{done} of {all} families, {} states, {failures} failed", tally.states);
        }
    });
    let Tally { families, workloads, moments, states, repeated, failures, by_mode, .. } = tally;
    let (length, (part, parts)) = (plan.length, plan.part);
    println!(
        "length {length}, part {part} of {parts}: {workloads} workloads in {families} families, \
         {moments} moments, {states} states recovered, {repeated} seen before, {} failed, \
         in {:.1} s",
        failures.len(),
        begin.elapsed().as_secs_f64(),
    );
    println!("new extents found: {}", told_by_mode(&by_mode));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn told_by_mode(by_mode: &ByMode) -> String {
    let each = ChecksumMode::ALL.iter().zip(by_mode);
    each.map(|(mode, count)| format!("{count} {mode}")).collect::<Vec<_>>().join(", ")
}

fn faults_on(protection: Option<Format>) -> Faults {
    protection.map_or_else(Faults::new, Faults::on)
}

fn play_fault(faults: &Faults, point: Point) -> ExitCode {
    match faults.play(point) {
        Ok(fate) => println!("{point}: {fate:?}"),
        Err(failure) => {
            println!("FAILED {failure}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Plays everything that can fail, and counts what came of it.
fn play_faults(faults: &Faults) -> ExitCode {
    let begin = Instant::now();
    let mut failed = 0;
    let mut rows: BTreeMap<(u8, bool), [u64; Fate::ALL.len()]> = BTreeMap::new();
    for point in faults.points() {
        match faults.play(point) {
            Ok(fate) => {
                let row = rows.entry((point.kind as u8, point.for_good)).or_default();
                row[fate as usize] += 1;
            }
            Err(failure) => {
                failed += 1;
                println!("FAILED {failure}\n  replay: copyhold-simulate --fault {point}");
            }
        }
    }
    println!(
        "{:10}{:>10}{}",
        "request",
        "fails",
        Fate::ALL.map(|of| format!("{:>12}", format!("{of:?}"))).concat()
    );
    for ((kind, for_good), row) in &rows {
        let kind = format!("{:?}", Kind::ALL[usize::from(*kind)]).to_lowercase();
        let how = if *for_good { "for good" } else { "once" };
        println!("{kind:10}{how:>10}{}", row.map(|count| format!("{count:>12}")).concat());
    }
    let points = faults.points().count();
    let seconds = begin.elapsed().as_secs_f64();
    println!("extents without a fault: {}", told_by_mode(&faults.by_mode()));
    println!("faults: {points} in {seconds:.1} s, each with 2 crashes, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fresh() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64 >> 10)
}

fn parse(args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut parsed = Args {
        seeds: 100,
        start: None,
        levels: Level::ALL.to_vec(),
        weather: None,
        broken: None,
        protection: None,
        modes: None,
        grows: false,
        flush: FlushPolicy::Threshold,
        stock: false,
        few_maps: false,
        enumerate: None,
        part: (1, 1),
        mode: ChecksumMode::Item,
        faults: false,
        fault: None,
    };
    let mut args = args;
    let mut given = Vec::new();
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
            "--pi" => {
                let format = value()?.parse();
                parsed.protection = Some(format.map_err(|error: FormatError| error.to_string())?);
            }
            "--modes" => {
                let say = |yes: bool| if yes { "yes" } else { "no" }.to_string();
                parsed.modes = Some(named(&value()?, &[true, false], say)?);
            }
            "--grow" => parsed.grows = true,
            "--flush" => {
                parsed.flush = named(&value()?, &FlushPolicy::ALL, |when| when.name().into())?;
            }
            "--stock" => parsed.stock = true,
            "--maps" => parsed.few_maps = true,
            "--enumerate" => parsed.enumerate = Some(length(&value()?)?),
            "--mode" => {
                let mode = value()?;
                let none = |()| format!("{mode} is no checksum mode");
                parsed.mode = mode.parse().map_err(none)?;
            }
            "--part" => parsed.part = part(&value()?)?,
            "--faults" => parsed.faults = true,
            "--fault" => parsed.fault = Some(value()?.parse()?),
            _ => return Err(format!("unknown argument {name}")),
        }
        given.push(name);
    }
    refuse_unheeded(&given)?;
    Ok(parsed)
}

/// A run without what an argument asks for would look like one with it.
fn refuse_unheeded(given: &[String]) -> Result<(), String> {
    let asked = |kind: &&&[&str]| given.iter().any(|name| name == kind[0]);
    let other = OTHERS.iter().find(asked);
    let heeded = other.copied().unwrap_or(HISTORIES);
    let run = other.map_or("histories", |kind| kind[0]);
    if asked(&&&["--grow"][..]) && asked(&&&["--pi"][..]) {
        return Err("--grow does nothing with --pi: a namespace keeps its size".into());
    }
    let unheeded = given.iter().find(|name| !heeded.contains(&name.as_str()));
    unheeded.map_or(Ok(()), |name| Err(format!("{name} does nothing with {run}")))
}

fn length(text: &str) -> Result<usize, String> {
    let length = text.parse().ok().filter(|length| Enumeration::LENGTHS.contains(length));
    length.ok_or_else(|| format!("{text} is not 1 or 2"))
}

fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(part, parts)| {
        let numbers: (usize, usize) = (part.parse().ok()?, parts.parse().ok()?);
        (1..=numbers.1).contains(&numbers.0).then_some(numbers)
    });
    numbers.ok_or_else(|| format!("{text} is no part, such as 1/4"))
}

fn named<T: Copy>(text: &str, all: &[T], name: impl Fn(T) -> String) -> Result<T, String> {
    let known = || all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", ");
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| format!("{text} is none of {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> Option<String> {
        parse(line.split_whitespace().map(str::to_owned)).err()
    }

    #[test]
    fn an_argument_that_does_nothing_is_refused() {
        for (line, refused) in [
            ("--mode guard", "--mode does nothing with histories"),
            ("--part 1/2 --seeds 3", "--part does nothing with histories"),
            ("--modes yes --enumerate 1", "--modes does nothing with --enumerate"),
            ("--enumerate 1 --faults", "--faults does nothing with --enumerate"),
            ("--grow --pi 4096+16:64b", "--grow does nothing with --pi"),
            ("--faults --modes yes", "--modes does nothing with --faults"),
            ("--faults --flush even", "--flush does nothing with --faults"),
            ("--faults --break TrustSecondFlush", "--break does nothing with --faults"),
            ("--fault write:7:once --mode guard", "--mode does nothing with --fault"),
        ] {
            assert!(refusal(line).is_some_and(|why| why.contains(refused)), "{line}");
        }
        for line in [
            "",
            "--seeds 3 --start 1 --level fs --modes yes --flush even --stock --maps --pi 4096+16:64b --break NoBirth",
            "--enumerate 1 --part 1/4 --mode guard --pi 4096+16:64b --break NoFlushBeforeGuard",
            "--fault write:7:once --pi 4096+16:64b",
            "--faults",
            "--level pool --seed 3 --grow",
        ] {
            assert_eq!(refusal(line), None, "{line}");
        }
    }
}
