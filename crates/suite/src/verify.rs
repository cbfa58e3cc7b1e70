//! Compares what is expected with what is: `None`, or what is wrong in one sentence.

use crate::amount::{Range, show};
use crate::error::SuiteError;
use crate::filesystem::Row;
use crate::outcome::Outcome;
use crate::scenario::{Expectation, GroupId, GroupName, State};

/// Finds the group that a name stands for.
type Resolve<'a> = &'a dyn Fn(&GroupName) -> Result<GroupId, SuiteError>;

/// What is wrong, if anything.
type Wrong = Option<String>;

pub(crate) fn step(expectation: &Expectation, outcome: &Outcome) -> Wrong {
    match expectation {
        Expectation::Errno(wanted) => {
            let is_wanted = wanted.iter().any(|wanted| match (&outcome.failure, wanted) {
                (None, None) => true,
                (Some(failure), Some(wanted)) => failure.errno == Some(*wanted),
                _ => false,
            });
            let name = |errno: &Option<_>| {
                errno.map_or("success".to_owned(), |errno: crate::errno::Errno| errno.to_string())
            };
            let wanted = wanted.iter().map(name).collect::<Vec<_>>().join(" or ");
            let came = match &outcome.failure {
                None => "it succeeded".to_owned(),
                Some(failure) => match failure.errno {
                    Some(errno) => format!("it was {errno} ({})", failure.says),
                    None => format!("it failed ({})", failure.says),
                },
            };
            (!is_wanted).then(|| format!("{wanted} was expected; {came}"))
        }
        Expectation::Accepted(range) => compare("accepted", Some(*range), outcome.accepted),
        _ => None,
    }
}

/// `top`: the group of the filesystem's root, which `rows` leaves out.
pub(crate) fn accounts(
    expectation: &Expectation,
    rows: &[Row],
    top: GroupId,
    resolve: Resolve<'_>,
) -> Result<Wrong, SuiteError> {
    let row = |name: &GroupName| {
        let group = resolve(name)?;
        Ok::<_, SuiteError>((group, rows.iter().find(|row| row.group == group)))
    };
    let wrong = match expectation {
        Expectation::Usage { group, data, metadata, total } => match row(group)? {
            (group, None) => no_row(group),
            (_, Some(row)) => {
                let wrong = [
                    compare("data", *data, row.data),
                    compare("metadata", *metadata, row.metadata),
                    compare("total", *total, row.data + row.metadata),
                ];
                join(wrong.into_iter().flatten())
            }
        },
        Expectation::State { group, states } => {
            let (_, row) = row(group)?;
            let state = row.map_or(State::Absent, |row| row.state);
            let names: Vec<_> = states.iter().map(|state| state.name()).collect();
            let wrong = !states.contains(&state);
            wrong.then(|| format!("{} was expected; it is {}", names.join(" or "), state.name()))
        }
        Expectation::Rows(names) => {
            let found = rows.iter().map(|row| row.group).filter(|group| *group != top).collect();
            same_groups(resolve_all(names, resolve)?, found)
        }
        Expectation::Parents { group, parents } => match row(group)? {
            (group, None) => no_row(group),
            (_, Some(row)) => same_groups(resolve_all(parents, resolve)?, row.parents.clone()),
        },
        Expectation::Limit { group, limit } => match (row(group)?, limit) {
            ((group, None), _) => no_row(group),
            ((_, Some(Row { limit: Some(is), .. })), Some(range)) => {
                compare("the limit", Some(*range), *is)
            }
            ((_, Some(row)), None) => {
                row.limit.map(|is| format!("no limit was expected; it is {}", show(is)))
            }
            ((_, Some(_)), Some(range)) => {
                Some(format!("a limit of {range} was expected; there is none"))
            }
        },
        Expectation::Errno(_) | Expectation::Accepted(_) => None,
    };
    Ok(wrong)
}

fn compare(what: &str, range: Option<Range>, is: u64) -> Wrong {
    let range = range.filter(|range| !range.contains(is))?;
    Some(format!("{what}: {range} was expected; it is {} ({is})", show(is)))
}

fn no_row(group: GroupId) -> Wrong {
    Some(format!("there is no row of {group}"))
}

fn same_groups(mut wanted: Vec<GroupId>, mut found: Vec<GroupId>) -> Wrong {
    wanted.sort_unstable();
    found.sort_unstable();
    let show = |groups: &[GroupId]| match groups {
        [] => "none".to_owned(),
        _ => groups.iter().map(GroupId::to_string).collect::<Vec<_>>().join(" "),
    };
    (wanted != found).then(|| format!("{} expected; there are {}", show(&wanted), show(&found)))
}

fn resolve_all(names: &[GroupName], resolve: Resolve<'_>) -> Result<Vec<GroupId>, SuiteError> {
    names.iter().map(resolve).collect()
}

fn join(wrong: impl Iterator<Item = String>) -> Wrong {
    let wrong: Vec<_> = wrong.collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}
