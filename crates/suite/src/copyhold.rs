//! Copyhold, through its program.
//!
//! `qgroup show --json` answers with an array of objects `{id, path, state, referenced, exclusive,
//! data, metadata, reserved, limits: {referenced, exclusive}, parents}`, bytes throughout; a
//! command that fails says `{"error": {"code", "message"}}` on standard error.

use std::path::{Path, PathBuf};
use std::process::Command;

use copyhold_harness::{Place, Pool, Program, show};
use serde::Deserialize;
use serde_json::Value;

use crate::errno::Errno;
use crate::error::SuiteError;
use crate::filesystem::{Filesystem, PREFIX, Row};
use crate::outcome::{Outcome, ask as answer_of, run};
use crate::scenario::{GroupId, State};

pub(crate) struct Copyhold {
    pool: Pool,
    mount_point: PathBuf,
}

impl Copyhold {
    pub(crate) fn make(
        program: &Program,
        parent: &Path,
        bytes: u64,
        options: Option<&str>,
    ) -> Result<Copyhold, SuiteError> {
        let place = Place::new(parent, PREFIX)?;
        place.make_image(bytes)?;
        let options = options.into_iter().flat_map(|options| ["-o", options]).map(str::to_owned);
        let pool = Pool::new(program.clone(), place).mounted_with(options);
        pool.create(&[])?;
        pool.mount()?;
        Ok(Copyhold { mount_point: pool.mount_point(), pool })
    }
}

impl Filesystem for Copyhold {
    fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    fn program(&self) -> Command {
        let mut program = self.pool.program().command();
        program.arg("--json");
        program
    }

    fn enable(&self) -> Result<Outcome, SuiteError> {
        let mut enable = self.program();
        Outcome::of_command(enable.args(["quota", "enable", "--simple"]).arg(&self.mount_point))
    }

    fn deduplicate(&self, _source: &Path, _target: &Path) -> Result<Outcome, SuiteError> {
        Ok(Outcome::of(Err(rustix::io::Errno::OPNOTSUPP)))
    }

    fn defragment(&self, _file: &Path) -> Result<Outcome, SuiteError> {
        Ok(Outcome::of(Err(rustix::io::Errno::OPNOTSUPP)))
    }

    fn subvolume_id(&self, path: &Path) -> Result<u64, SuiteError> {
        let mut ask = self.program();
        ask.args(["subvolume", "show"]).arg(path);
        let answer = run(&mut ask)?;
        let id = serde_json::from_str::<Value>(&answer).ok().and_then(|it| it.get("id")?.as_u64());
        id.ok_or_else(|| contract(&ask, format!("no number 'id' in {}", answer.trim())))
    }

    fn sync(&self) -> Result<(), SuiteError> {
        run(self.program().arg("sync").arg(&self.mount_point)).map(drop)
    }

    fn finish_deletions(&self) -> Result<(), SuiteError> {
        run(self.program().args(["subvolume", "sync"]).arg(&self.mount_point))?;
        self.sync()
    }

    fn remount(&self) -> Result<(), SuiteError> {
        self.pool.unmount()?;
        Ok(self.pool.mount()?)
    }

    fn accounts(&self) -> Result<Vec<Row>, SuiteError> {
        let mut ask = self.program();
        ask.args(["qgroup", "show"]).arg(&self.mount_point);
        match answer_of(&mut ask)? {
            Ok(answer) => rows(&answer).map_err(|what| contract(&ask, what)),
            Err(failure) if failure.errno == Errno::named("ENOTCONN") => Ok(Vec::new()),
            Err(failure) => Err(SuiteError::Command { command: show(&ask), says: failure.says }),
        }
    }

    fn take_down(&self) -> Result<(), SuiteError> {
        self.pool.unmount()?;
        Ok(self.pool.check()?)
    }
}

fn contract(command: &Command, what: String) -> SuiteError {
    SuiteError::Contract { command: show(command), what }
}

#[derive(Deserialize)]
struct RowJson {
    id: String,
    state: String,
    referenced: u64,
    exclusive: u64,
    data: u64,
    metadata: u64,
    limits: LimitsJson,
    parents: Vec<String>,
}

#[derive(Deserialize)]
struct LimitsJson {
    referenced: Option<u64>,
    exclusive: Option<u64>,
}

fn rows(answer: &str) -> Result<Vec<Row>, String> {
    let rows: Vec<RowJson> = serde_json::from_str(answer).map_err(|error| error.to_string())?;
    rows.into_iter().map(row).collect()
}

fn row(json: RowJson) -> Result<Row, String> {
    let group = |text: &str| GroupId::parse(text).ok_or_else(|| format!("'{text}' is no group id"));
    let state = State::named(&json.state);
    let sum = json.data.checked_add(json.metadata);
    if sum != Some(json.referenced) || json.exclusive != json.referenced {
        return Err(format!("{}: data and metadata are not what is referenced", json.id));
    }
    Ok(Row {
        group: group(&json.id)?,
        state: state.ok_or_else(|| format!("'{}' is no state", json.state))?,
        data: json.data,
        metadata: json.metadata,
        limit: json.limits.referenced.or(json.limits.exclusive),
        parents: json.parents.iter().map(|id| group(id)).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"[{"id": "0/256", "path": "a", "state": "tombstone", "referenced": 12288,
        "exclusive": 12288, "data": 8192, "metadata": 4096, "reserved": 0,
        "limits": {"referenced": 1048576, "exclusive": null}, "parents": ["1/100"]}]"#;

    #[test]
    fn rows_are_as_the_contract_says() {
        let rows = rows(ROW).unwrap();
        assert_eq!(rows[0].group, GroupId::of_subvolume(256));
        assert_eq!(rows[0].state, State::Tombstone);
        assert_eq!((rows[0].data, rows[0].metadata), (8192, 4096));
        assert_eq!(rows[0].limit, Some(1 << 20));
        assert_eq!(rows[0].parents, [GroupId { level: 1, id: 100 }]);
    }

    #[test]
    fn answers_against_the_contract_are_told() {
        let changed = [
            ("tombstone", "dead", "'dead' is no state"),
            ("0/256", "256", "no group id"),
            ("\"data\": 8192", "\"data\": 8193", "not what is referenced"),
            ("\"data\"", "\"dat\"", "missing field"),
        ];
        for (from, to, says) in changed {
            let error = rows(&ROW.replace(from, to)).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
