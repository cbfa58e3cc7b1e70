//! The tables of `SECURITY.md`, cell by cell: each caller tries each verb on a mounted pool.
//!
//! They need root and /dev/fuse, and pass with a note where there is none, except under CI.

#![allow(clippy::disallowed_methods, reason = "it starts processes of other users")]

mod site;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use site::*;

const TABLES: &str = include_str!("../../../SECURITY.md");
const GROUP: &str = "1/1";
const OWNER: u32 = 1000;
const OTHER: u32 = 1001;

/// A table: the mount options, the names of callers, and a result for each verb and caller.
struct Table<'t> {
    options: &'t str,
    callers: Vec<&'t str>,
    rows: Vec<(&'t str, Vec<&'t str>)>,
}

/// The tables of the section on verbs.
fn tables() -> Vec<Table<'static>> {
    let section = TABLES.split("\n## ").find(|section| section.starts_with("Verbs\n")).unwrap();
    let table = |text: &'static str| {
        let cells = |line: &'static str| -> Vec<&str> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect()
        };
        let mut lines = text.lines().filter(|line| line.starts_with('|')).map(cells);
        let callers = lines.next().unwrap()[1..].to_vec();
        let rows = lines.skip(1).map(|cells| (cells[0], cells[1..].to_vec())).collect();
        let options = match text.lines().next().unwrap().trim_matches('`') {
            "Default" => "rw",
            options => options,
        };
        Table { options, callers, rows }
    };
    section.split("\n### ").skip(1).map(table).collect()
}

/// A pool with a directory of the owner and one of the other user, and subvolumes in both.
struct World {
    site: Site,
    program: PathBuf,
}

impl World {
    fn new() -> Option<World> {
        let site = Site::mounted(&[])?;
        site.done(&["quota", "enable", "--simple", &site.at("")]);
        for (home, user) in [("home", OWNER), ("secret", OTHER)] {
            fs::create_dir(site.path(home)).unwrap();
            chown(site.path(home), Some(user), Some(user)).unwrap();
        }
        // A rollback gives the subvolume another id, and the group remains.
        site.done(&["qgroup", "create", GROUP, &site.at("")]);
        site.subvolume("home/sub");
        site.subvolume("secret/his");
        // The owner's subvolume in a directory that he cannot read.
        site.subvolume("secret/mine");
        for (path, user) in [("home/sub", OWNER), ("secret/mine", OWNER), ("secret/his", OTHER)] {
            fs::write(site.path(path).join("file"), "x").unwrap();
            chown(site.path(path), Some(user), Some(user)).unwrap();
        }
        site.snapshot("home/sub", "home/snap");
        fs::set_permissions(site.path("secret"), fs::Permissions::from_mode(0o700)).unwrap();
        let program = copied_program(site.directory());
        Some(World { site, program })
    }

    /// `command` as it is started by a caller.
    fn by(&self, caller: &str, command: &[&str]) -> Output {
        let user = |id: u32| {
            let ids = [format!("--reuid={id}"), format!("--regid={id}"), "--clear-groups".into()];
            ["setpriv".to_owned()].into_iter().chain(ids).collect::<Vec<_>>()
        };
        let words = |words: &[&str]| -> Vec<String> {
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        let contained = ["unshare", "--user", "--map-root-user"];
        let starter: Vec<String> = match caller {
            "root" => Vec::new(),
            "powerless" => words(&["setpriv", "--bounding-set=-all", "--inh-caps=-all"]),
            "apart" => words(&["unshare", "--mount"]),
            "contained" => words(&contained),
            "owner" => user(OWNER),
            "mapped" => user(OWNER).into_iter().chain(words(&contained)).collect(),
            "other" => user(OTHER),
            caller => panic!("no caller is named {caller}"),
        };
        let mut run = Command::new("env");
        run.args(starter).args(command).current_dir("/").output().unwrap()
    }

    /// The result of a verb for a caller, in the words of the table.
    fn result(&self, caller: &str, verb: &str) -> &'static str {
        let site = &self.site;
        let at = |name: &str| site.at(name);
        let program = self.program.to_str().unwrap();
        let run = |arguments: &[&str]| self.by(caller, &[&[program, "--json"], arguments].concat());
        let succeeds = |output: Output| match output.status.success() {
            true => "yes",
            false => {
                let says = String::from_utf8_lossy(&output.stderr).into_owned();
                let is_refusal = says.contains("EPERM") || says.contains("not permitted");
                let by_kernel = says.contains("denied");
                assert!(is_refusal || by_kernel, "{verb} by {caller}: {says}");
                "no"
            }
        };
        let remove = |name: &str| {
            if site.path(name).exists() {
                site.delete(name);
            }
        };
        match verb {
            "subvolume create" => {
                let result = succeeds(run(&["subvolume", "create", &at("home/new")]));
                remove("home/new");
                result
            }
            "subvolume snapshot" => {
                let (from, to) = (at("home/sub"), at("home/new"));
                let result = succeeds(run(&["subvolume", "snapshot", &from, &to]));
                remove("home/new");
                result
            }
            "subvolume delete" => {
                site.snapshot("home/sub", "home/doomed");
                let result = succeeds(run(&["subvolume", "delete", &at("home/doomed")]));
                assert_eq!(site.path("home/doomed").exists(), result == "no");
                remove("home/doomed");
                result
            }
            "subvolume rollback" => {
                succeeds(run(&["subvolume", "rollback", &at("home/sub"), &at("home/snap")]))
            }
            "property set" => succeeds(run(&["property", "set", &at("home/snap"), "ro", "false"])),
            "rmdir" => {
                site.subvolume("home/bare");
                chown(site.path("home/bare"), Some(OWNER), Some(OWNER)).unwrap();
                let result = succeeds(self.by(caller, &["rmdir", &at("home/bare")]));
                remove("home/bare");
                result
            }
            "quota enable" => succeeds(run(&["quota", "enable", "--simple", &at("home")])),
            "qgroup limit" => succeeds(run(&["qgroup", "limit", "1G", GROUP, &at("home")])),
            "qgroup clear-stale" => succeeds(run(&["qgroup", "clear-stale", &at("home")])),
            "memory set" => succeeds(run(&["memory", "set", &at("home/sub"), "low=1M"])),
            "memory reclaim" => succeeds(run(&["memory", "reclaim", "0", &at("home/sub")])),
            "memory events" => succeeds(run(&["memory", "events", &at("home/sub")])),
            "fstrim" => succeeds(self.by(caller, &["fstrim", &at("")])),
            "subvolume sync" => succeeds(run(&["subvolume", "sync", &at("")])),
            "subvolume du" => succeeds(run(&["subvolume", "du", &at("home/sub")])),
            "df" => succeeds(run(&["df", &at("home")])),
            "sync" => succeeds(run(&["sync", &at("home")])),
            "subvolume list" => listed(run(&["subvolume", "list", &at("")]), succeeds),
            "memory show" => listed(run(&["memory", "show", &at("")]), succeeds),
            "qgroup show" => listed(run(&["qgroup", "show", &at("")]), succeeds),
            "subvolume show" => {
                let output = run(&["subvolume", "show", &at("home/sub")]);
                assert!(output.status.success(), "{caller}: {output:?}");
                match json(&output)["path"].as_str() {
                    Some("home/sub") => "yes",
                    Some("sub") => "own",
                    None => "some",
                    path => panic!("{caller} sees {path:?}"),
                }
            }
            "info" => {
                let output = run(&["info", &at("")]);
                assert!(output.status.success(), "{caller}: {output:?}");
                let info = json(&output);
                assert!(info["size_bytes"].is_u64());
                let fields = ["pid", "pool", "counters"].map(|field| info.get(field).is_some());
                assert!(fields.iter().all(|is_there| *is_there == fields[0]), "{caller}: {info}");
                if fields[0] { "yes" } else { "some" }
            }
            verb => panic!("no verb is named {verb}"),
        }
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `yes`: all rows with their paths, `own`: names of the caller's own.
fn listed(output: Output, refused: impl Fn(Output) -> &'static str) -> &'static str {
    if !output.status.success() {
        return refused(output);
    }
    let rows = json(&output);
    let paths: Vec<&str> =
        rows.as_array().unwrap().iter().filter_map(|row| row["path"].as_str()).collect();
    if paths.contains(&"secret/his") && paths.contains(&"home/sub") {
        return "yes";
    }
    assert!(paths.iter().all(|path| !path.contains('/')), "{paths:?}");
    assert!(paths.contains(&"his") != paths.contains(&"mine"), "{paths:?}");
    "own"
}

#[test]
fn each_caller_may_do_with_each_verb_as_the_tables_say() {
    let Some(world) = World::new() else { return };
    let tables = tables();
    assert!(tables.len() >= 4);
    let mut differing = Vec::new();
    for Table { options, callers, rows } in tables {
        world.site.unmount();
        world.site.mount(&["-o", options]);
        for (verb, cells) in rows {
            assert_eq!(cells.len(), callers.len(), "{options}: {verb}");
            for (caller, cell) in callers.iter().zip(cells) {
                let result = world.result(caller, verb);
                if result != cell {
                    differing.push(format!("{options}: {verb} by {caller}: {result}, not {cell}"));
                }
            }
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn the_daemon_keeps_few_powers() {
    let Some(site) = Site::mounted(&[]) else { return };
    let status = || fs::read_to_string(format!("/proc/{}/status", site.pid())).unwrap();
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let (sys_ptrace, sys_admin, sys_resource, ipc_lock) = (1 << 19, 1 << 21, 1 << 24, 1 << 14);
    if field(&own, "CapPrm:") & sys_ptrace == 0 {
        return eprintln!("skipped: without CAP_SYS_PTRACE the daemon keeps what it has");
    }
    let tasks = fs::read_dir(format!("/proc/{}/task", site.pid())).unwrap();
    for task in tasks {
        let path = task.unwrap().path();
        let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
        for set in ["CapEff:", "CapPrm:"] {
            let kept = field(&status, set);
            let unknown = kept & !(sys_ptrace | sys_admin | sys_resource | ipc_lock);
            assert_eq!(unknown, 0, "{} {set} {kept:x}", path.display());
        }
        assert_eq!(field(&status, "CapInh:") | field(&status, "CapAmb:"), 0);
        assert!(status.contains("NoNewPrivs:\t1"));
    }
    assert!(status().contains("Umask:\t0077"));
    let dumps = || {
        let read = |name| fs::read_to_string(format!("/proc/{}/{name}", site.pid())).unwrap();
        let limit = read("limits").lines().find_map(|line| {
            let words = line.strip_prefix("Max core file size")?.split_whitespace();
            Some(words.take(2).map(str::to_owned).collect::<Vec<_>>())
        });
        (limit.unwrap(), read("coredump_filter").trim().to_owned())
    };
    let none = (vec!["1".to_owned(), "1".to_owned()], "00000000".to_owned());
    assert_eq!(dumps(), none);
    site.unmount();
    site.mount(&["-o", "core_dumps"]);
    assert_ne!(dumps(), none);
}
