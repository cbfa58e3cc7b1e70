//! Accounts that scripts run as, from the databases of the system (getent(1)).

use std::path::PathBuf;
use std::process::Command;

use copyhold_harness::output;
use rustix::process::geteuid;

use crate::error::RunnerError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
}

impl Account {
    /// The account that runs this program; its number is the name if the databases lack it.
    pub(crate) fn own() -> Result<Account, RunnerError> {
        let uid = geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let found = find(&uid.to_string())?;
        Ok(found.unwrap_or_else(|| Account { name: uid.to_string(), uid, gid, home: "/".into() }))
    }

    pub(crate) fn named(name: &str) -> Result<Account, RunnerError> {
        find(name)?.ok_or_else(|| RunnerError::NoSuchUser(name.to_owned()))
    }
}

fn find(key: &str) -> Result<Option<Account>, RunnerError> {
    let answer = output(Command::new("getent").args(["passwd", "--", key]))?;
    let line = String::from_utf8_lossy(&answer.stdout).into_owned();
    match answer.status.success() {
        true => parse(line.trim_end()).map(Some).ok_or(RunnerError::Account(line)),
        false => Ok(None),
    }
}

/// `name:password:uid:gid:comment:home:shell`
fn parse(line: &str) -> Option<Account> {
    let fields: Vec<_> = line.split(':').collect();
    let [name, _, uid, gid, _, home, _] = fields[..] else { return None };
    let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
    Some(Account { name: name.to_owned(), uid, gid, home: home.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name() {
        let _turn = crate::alone::turn();
        let root = Account::named("root").unwrap();
        assert_eq!((root.name.as_str(), root.uid, root.gid), ("root", 0, 0));
        let error = Account::named("no-such-user").unwrap_err().to_string();
        assert_eq!(error, "no account has the name no-such-user");
        assert_eq!(Account::own().unwrap().uid, geteuid().as_raw());
        assert_eq!(parse("root:x:0"), None);
    }
}
