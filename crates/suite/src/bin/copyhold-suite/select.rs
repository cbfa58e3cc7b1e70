//! Groups and tests of one run, and their order.
//!
//! SELECT-T1  A group runs if it has one of the tags of the request.
//! SELECT-T2  The parts `1/n` to `n/n` of a request have each of its groups once. Groups that share
//!            their last tag are in one part.
//! SELECT-T3  A shuffle keeps tests in their groups; a seed gives the same order each time.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::error::RunnerError;
use crate::plan::{Group, group_of_script};
use crate::runfile::Options;

const DEFAULT: &str = "functional";

/// Of the areas, those whose number is `number` modulo `of`; numbers begin at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    number: usize,
    of: usize,
}

/// `functional,long`, or `2/3`, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    names: Vec<String>,
    part: Option<Part>,
}

impl FromStr for Tags {
    type Err = RunnerError;

    fn from_str(text: &str) -> Result<Tags, RunnerError> {
        let wrong = || RunnerError::Tags(text.to_owned());
        let mut tags = Tags { names: Vec::new(), part: None };
        for word in text.split(',').map(str::trim) {
            match word.split_once('/') {
                Some((number, of)) => {
                    let number = number.parse().map_err(|_| wrong())?;
                    let of = of.parse().map_err(|_| wrong())?;
                    if tags.part.is_some() || number == 0 || number > of {
                        return Err(wrong());
                    }
                    tags.part = Some(Part { number, of });
                }
                None if word.is_empty() => return Err(wrong()),
                None => tags.names.push(word.to_owned()),
            }
        }
        if tags.names.is_empty() {
            tags.names.push(DEFAULT.to_owned());
        }
        Ok(tags)
    }
}

/// The groups that have a tag of the request.
pub(crate) fn by_tags(mut groups: Vec<Group>, tags: &Tags) -> Vec<Group> {
    groups.retain(|group| group.tags.iter().any(|tag| tags.names.contains(tag)));
    if let Some(part) = tags.part {
        let areas: BTreeSet<_> = groups.iter().filter_map(|group| group.tags.last()).collect();
        let areas = areas.into_iter().enumerate();
        let chosen = areas.filter(|(index, _)| index % part.of == part.number - 1);
        let chosen: BTreeSet<String> = chosen.map(|(_, area)| area.clone()).collect();
        groups.retain(|group| group.tags.last().is_some_and(|area| chosen.contains(area)));
    }
    groups
}

/// The groups of these tests, without their other tests. A name without a slash is searched in all
/// groups.
pub(crate) fn by_names(
    groups: &[Group],
    names: &[String],
    root: &Path,
    defaults: &Options,
) -> Result<Vec<Group>, RunnerError> {
    let mut chosen = Vec::new();
    for name in names {
        let is_named = |test: &str| match name.contains('/') {
            true => test == name,
            false => test.rsplit('/').next() == Some(name),
        };
        let mut found: Vec<Group> = groups.to_vec();
        for group in &mut found {
            group.tests.retain(|test| is_named(&test.name));
        }
        found.retain(|group| !group.tests.is_empty());
        if found.is_empty() {
            let group = group_of_script(name, root, defaults);
            found.push(group.ok_or_else(|| RunnerError::NoSuchTest(name.clone()))?);
        }
        chosen.append(&mut found);
    }
    Ok(chosen)
}

/// Another order of groups, and of the tests of each, for each seed.
pub(crate) fn shuffle(groups: &mut [Group], seed: u64) {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    shuffle_slice(groups, &mut random);
    for group in groups {
        shuffle_slice(&mut group.tests, &mut random);
    }
}

fn shuffle_slice<T>(items: &mut [T], random: &mut Xoshiro256PlusPlus) {
    for last in (1..items.len()).rev() {
        let other = random.next_u64() % (last as u64 + 1);
        items.swap(last, other as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::plan::Step;

    fn group(name: &str, tests: &[&str], tags: &[&str]) -> Group {
        let step = |test: &str| Step {
            name: format!("{name}/{test}"),
            script: PathBuf::new(),
            user: String::new(),
        };
        Group {
            name: name.into(),
            identifier: None,
            setup: Some(step("setup")),
            tests: tests.iter().map(|test| step(test)).collect(),
            cleanup: None,
            failsafe: None,
            timeout: None,
            quiet: false,
            tags: tags.iter().map(|tag| tag.to_string()).collect(),
        }
    }

    fn suite() -> Vec<Group> {
        let areas = ["mount", "names", "quotas", "space", "tenants"];
        let mut groups: Vec<_> =
            areas.iter().map(|area| group(area, &["a", "b"], &["functional", area])).collect();
        groups.push(group("more", &["c"], &["functional", "names"]));
        groups.push(group("fsx", &["fsx"], &["long", "fsx"]));
        groups.push(group("untagged", &["a"], &[]));
        groups
    }

    fn names(groups: &[Group]) -> Vec<&str> {
        groups.iter().map(|group| group.name.as_str()).collect()
    }

    fn tagged(tags: &str) -> Vec<Group> {
        by_tags(suite(), &tags.parse().unwrap())
    }

    #[test]
    fn a_group_runs_if_it_has_a_tag_of_the_request() {
        assert_eq!(names(&tagged("long,space")), ["space", "fsx"]);
        assert_eq!(tagged("functional").len(), 6);
        assert_eq!(tagged("nothing").len(), 0);
    }

    #[test]
    fn the_parts_of_a_request_have_each_group_once() {
        assert_eq!(names(&tagged("1/3")), ["mount", "space"]);
        assert_eq!(names(&tagged("2/3")), ["names", "tenants", "more"]);
        assert_eq!(names(&tagged("3/3")), ["quotas"]);
        assert_eq!(names(&tagged("long,1/1")), ["fsx"]);
        assert_eq!(names(&tagged("7/7")), Vec::<&str>::new());
        for of in 1..8 {
            let parts = (1..=of).flat_map(|number| tagged(&format!("{number}/{of}")));
            let mut parts: Vec<_> = parts.map(|group| group.name).collect();
            parts.sort();
            assert_eq!(parts, ["more", "mount", "names", "quotas", "space", "tenants"]);
        }
        for wrong in ["", "a,,b", "0/3", "4/3", "a/3", "1/2,1/3", "1/0"] {
            assert!(wrong.parse::<Tags>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_test_is_found_by_its_path_or_by_its_name_in_all_groups() {
        let root = Path::new("/no/such/suite");
        let find = |name: &str| {
            by_names(&suite(), &[name.to_owned()], root, &Options::default()).map(|groups| {
                let tests = groups.iter().flat_map(|group| &group.tests);
                tests.map(|test| test.name.clone()).collect::<Vec<_>>()
            })
        };
        assert_eq!(find("space/b").unwrap(), ["space/b"]);
        assert_eq!(find("c").unwrap(), ["more/c"]);
        assert_eq!(find("b").unwrap().len(), 5);
        let error = find("d").unwrap_err().to_string();
        assert!(error.ends_with("has the test d"), "{error}");
    }

    #[test]
    fn a_seed_gives_one_order_and_keeps_tests_in_their_groups() {
        let shuffled = |seed| {
            let mut groups = suite();
            shuffle(&mut groups, seed);
            groups
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert!((0..20).any(|seed| shuffled(seed) != suite()));
        assert!((0..20).any(|seed| {
            shuffled(seed)
                .iter()
                .any(|group| group.tests.first().is_some_and(|test| test.name.ends_with("/b")))
        }));
        for seed in 0..20 {
            let mut groups = shuffled(seed);
            for group in &mut groups {
                assert!(group.tests.iter().all(|test| test.name.starts_with(&group.name)));
                group.tests.sort_by(|a, b| a.name.cmp(&b.name));
            }
            let mut sorted = suite();
            groups.sort_by(|a, b| a.name.cmp(&b.name));
            sorted.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(groups, sorted);
        }
    }
}
