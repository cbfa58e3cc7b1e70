//! Where and how a run was made: a figure without it cannot be repeated.

use std::fmt;
use std::fs;

use serde::Serialize;

use crate::error::{BenchError, On};

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    command: String,
    kernel: String,
    cpus: usize,
    /// Over one, five and fifteen minutes before the run.
    load: [f64; 3],
}

impl Machine {
    /// Before the first round, which raises the load itself.
    pub(crate) fn now() -> Result<Machine, BenchError> {
        let load = fs::read_to_string("/proc/loadavg").on("/proc/loadavg")?;
        Ok(Machine {
            command: std::env::args().collect::<Vec<String>>().join(" "),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().on("the number of CPUs")?.get(),
            load: parse_load(&load),
        })
    }

    #[cfg(test)]
    pub(crate) fn example() -> Machine {
        let (command, kernel) = ("copyhold-bench job".into(), "6.18".into());
        Machine { command, kernel, cpus: 2, load: [0.5, 0.25, 0.0] }
    }
}

/// The first three numbers; 0 for what is none.
fn parse_load(text: &str) -> [f64; 3] {
    let mut numbers = text.split_whitespace().map(|word| word.parse().unwrap_or_default());
    [(); 3].map(|()| numbers.next().unwrap_or_default())
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, five, fifteen] = self.load;
        writeln!(f, "command: {}", self.command)?;
        writeln!(f, "kernel: {}, {} CPUs, load {one} {five} {fifteen}", self.kernel, self.cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_the_first_three_numbers() {
        assert_eq!(parse_load("0.25 1.50 2.00 1/123 4567\n"), [0.25, 1.5, 2.0]);
        assert_eq!(parse_load(""), [0.0; 3]);
    }
}
