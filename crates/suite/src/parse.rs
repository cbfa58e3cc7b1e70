//! Text of a scenario → `Scenario`, or the line that makes no sense and why.
//!
//! A file is lines: empty ones, `# comments`, a header (`scenario`, `section`, `differs`, `only`,
//! `options`, `size`) and then what is done. All words are described in `docs/scenarios.md`.
//!
//! PARSE-S1  A line for one target only needs a reason, the header `differs` (or `only`), and it
//!           them.
//! PARSE-S2  `expect errno` and `expect accepted` follow the step that they are about.
//! PARSE-S3  Paths stay inside the mount.

mod expectation;
mod step;
mod words;

use std::fmt;

use crate::amount;
use crate::scenario::{Action, Kind, Line, Scenario, Step};
use words::Words;

/// Size of the filesystem if the header says nothing.
const BYTES_DEFAULT: u64 = 1 << 30;

#[derive(Debug, PartialEq)]
pub(crate) struct ParseError {
    line: usize,
    message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ParseError {}

pub(crate) fn parse(text: &str) -> Result<Scenario, ParseError> {
    let mut scenario = Scenario {
        title: String::new(),
        section: String::new(),
        differs: None,
        only: None,
        options: Vec::new(),
        bytes: BYTES_DEFAULT,
        lines: Vec::new(),
    };
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let content = line.split('#').next().unwrap_or_default().trim();
        if !content.is_empty() {
            read_line(&mut scenario, number, content)
                .map_err(|message| ParseError { line: number, message })?;
        }
    }
    complete(&scenario).map_err(|(line, message)| ParseError { line, message })?;
    Ok(scenario)
}

fn read_line(scenario: &mut Scenario, number: usize, content: &str) -> Result<(), String> {
    let (word, rest) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
    let rest = rest.trim();
    let is_header = ["scenario", "section", "differs", "only", "options", "size"].contains(&word);
    if is_header {
        if let Some(first) = scenario.lines.first() {
            return Err(format!(
                "'{word}' belongs before the first step, in line {}",
                first.number
            ));
        }
        return read_header(scenario, word, rest);
    }
    let (target, content) = split_target(content)?;
    let mut words = Words::new(content);
    let first = words.next("a step")?;
    if first != "expect" {
        let action = Action::Step(step::read(first, &mut words)?);
        words.end()?;
        scenario.lines.push(Line { number, target, action });
        return Ok(());
    }
    if target.is_some() {
        return Err("write the target behind 'expect': expect btrfs: …".into());
    }
    let (target, content) = split_target(words.rest())?;
    let mut words = Words::new(content);
    let expectation = expectation::read(&mut words)?;
    words.end()?;
    let is_first = !scenario.lines.iter().any(|line| matches!(line.action, Action::Step(_)));
    let follows = match scenario.lines.last().map(|line| &line.action) {
        Some(Action::Step(_)) => true,
        Some(Action::Expect(before)) => before.is_of_a_step(),
        None => false,
    };
    if is_first || (expectation.is_of_a_step() && !follows) {
        return Err("there is no step right before that this could be about".into());
    }
    scenario.lines.push(Line { number, target, action: Action::Expect(expectation) });
    Ok(())
}

fn read_header(scenario: &mut Scenario, word: &str, rest: &str) -> Result<(), String> {
    if rest.is_empty() {
        return Err(format!("'{word}' needs more words"));
    }
    match word {
        "scenario" => scenario.title = rest.to_owned(),
        "section" => scenario.section = rest.to_owned(),
        // A reason may go on in a second line.
        "differs" => match &mut scenario.differs {
            Some(reason) => *reason = format!("{reason} {rest}"),
            None => scenario.differs = Some(rest.to_owned()),
        },
        "only" => {
            let (kind, reason) = rest.split_once(' ').ok_or("say why: only btrfs REASON")?;
            let kind = Kind::named(kind).ok_or_else(|| unknown_target(kind))?;
            scenario.only = Some((kind, reason.trim().to_owned()));
        }
        "options" => {
            let (kind, options) = rest.split_once(' ').ok_or("write: options TARGET OPTIONS")?;
            let kind = Kind::named(kind).ok_or_else(|| unknown_target(kind))?;
            scenario.options.push((kind, options.trim().to_owned()));
        }
        _ => scenario.bytes = amount::parse(rest)?,
    }
    Ok(())
}

/// `btrfs: rest` → the target and the rest.
fn split_target(content: &str) -> Result<(Option<Kind>, &str), String> {
    match content.split_once(':') {
        Some((name, rest)) if !name.contains(char::is_whitespace) => {
            let kind = Kind::named(name).ok_or_else(|| unknown_target(name))?;
            Ok((Some(kind), rest.trim()))
        }
        _ => Ok((None, content)),
    }
}

fn unknown_target(name: &str) -> String {
    format!("'{name}' is no target; there are copyhold and btrfs")
}

fn complete(scenario: &Scenario) -> Result<(), (usize, String)> {
    let missing = |word| Err((1, format!("the header says no '{word}'")));
    if scenario.title.is_empty() {
        return missing("scenario");
    }
    if scenario.section.is_empty() {
        return missing("section");
    }
    let has_reason = scenario.differs.is_some() || scenario.only.is_some();
    if let Some(line) = scenario.lines.iter().find(|line| line.target.is_some() && !has_reason) {
        return Err((line.number, "PARSE-S1: the header has no reason ('differs')".into()));
    }
    if scenario.differs.is_some() && scenario.lines.iter().all(|line| line.target.is_none()) {
        return Err((1, "PARSE-S1: 'differs', but no line is for one target only".into()));
    }
    let is_step = |line: &&Line| matches!(line.action, Action::Step(_));
    let last = scenario.lines.iter().rposition(|line| is_step(&line));
    match last.map(|last| &scenario.lines[last..]) {
        None => Err((1, "there is no step".into())),
        Some([step]) if !matches!(step.action, Action::Step(Step::Sync)) => {
            Err((step.number, "nothing is expected of the last step".into()))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
