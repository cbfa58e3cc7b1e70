//! Results as the XML that servers of continuous integration read (JUnit's).
//!
//! JUNIT-J1  Characters that XML cannot have are replaced: a test may print any bytes.
//! JUNIT-J2  A report has failures if and only if the exit code of the run is 1: a known failure is
//!           skipped, and a result that contradicts the list of them is a failure.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quick_xml::Writer;
use quick_xml::events::BytesText;

use crate::error::RunnerError;
use crate::verdict::Verdict;

/// Bytes of the end of a test's output.
const OUTPUT: u64 = 64 << 10;

pub(crate) struct Case {
    /// Of one iteration; cases of one group are neighbours.
    pub(crate) group: String,
    pub(crate) test: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    pub(crate) directory: PathBuf,
}

/// With the message for people.
pub(crate) enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

impl Outcome {
    /// Of a test that no list of known failures names.
    pub(crate) fn of(verdict: Verdict, reason: Option<&str>) -> Outcome {
        let message = reason.unwrap_or(verdict.name()).to_owned();
        match verdict {
            Verdict::Pass => Outcome::Passed,
            Verdict::Skip => Outcome::Skipped(message),
            Verdict::Fail | Verdict::Killed => Outcome::Failed(message),
        }
    }
}

pub(crate) fn write(file: &Path, cases: &[Case]) -> Result<(), RunnerError> {
    let failed = |error: io::Error| RunnerError::Junit(format!("{}: {error}", file.display()));
    let mut text = Vec::new();
    suites(&mut Writer::new_with_indent(&mut text, b' ', 2), cases).map_err(failed)?;
    text.push(b'\n');
    std::fs::write(file, text).map_err(failed)
}

fn suites(xml: &mut Writer<impl Write>, cases: &[Case]) -> io::Result<()> {
    let counts = attributes(cases);
    xml.create_element("testsuites").with_attributes(named(&counts)).write_inner_content(
        |xml| {
            cases.chunk_by(|one, other| one.group == other.group).try_for_each(|cases| {
                let counts = attributes(cases);
                let suite =
                    xml.create_element("testsuite").with_attribute(("name", &*cases[0].group));
                let suite = suite.with_attributes(named(&counts));
                suite.write_inner_content(|xml| cases.iter().try_for_each(|it| case(xml, it)))?;
                Ok(())
            })
        },
    )?;
    Ok(())
}

fn case(xml: &mut Writer<impl Write>, case: &Case) -> io::Result<()> {
    let time = seconds(case.took);
    let element = xml.create_element("testcase").with_attributes([
        ("name", case.test.as_str()),
        ("classname", case.group.as_str()),
        ("time", time.as_str()),
    ]);
    let (result, message) = match &case.outcome {
        Outcome::Passed => return element.write_empty().map(drop),
        Outcome::Skipped(message) => ("skipped", message),
        Outcome::Failed(message) => ("failure", message),
    };
    let message = legal(message);
    let output = legal(&String::from_utf8_lossy(&output_of(&case.directory)?));
    element.write_inner_content(|xml| {
        xml.create_element(result).with_attribute(("message", &*message)).write_empty()?;
        xml.create_element("system-out").write_text_content(BytesText::new(&output))?;
        Ok(())
    })?;
    Ok(())
}

fn attributes(cases: &[Case]) -> [(&'static str, String); 4] {
    let count = |is_counted: fn(&Outcome) -> bool| {
        cases.iter().filter(|case| is_counted(&case.outcome)).count().to_string()
    };
    [
        ("tests", cases.len().to_string()),
        ("failures", count(|outcome| matches!(outcome, Outcome::Failed(_)))),
        ("skipped", count(|outcome| matches!(outcome, Outcome::Skipped(_)))),
        ("time", seconds(cases.iter().map(|case| case.took).sum())),
    ]
}

fn named<'a>(attributes: &'a [(&'static str, String)]) -> impl Iterator<Item = (&'a str, &'a str)> {
    attributes.iter().map(|(name, value)| (*name, value.as_str()))
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

/// The end of all lines; a test that was not started has none.
fn output_of(directory: &Path) -> io::Result<Vec<u8>> {
    let mut file = match std::fs::File::open(directory.join("merged")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(OUTPUT)))?;
    let mut output = Vec::new();
    file.read_to_end(&mut output)?;
    Ok(output)
}

fn legal(text: &str) -> String {
    text.chars().map(|c| if is_legal(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

fn is_legal(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' | '\u{10000}'.. => true,
        _ => (' '..='\u{fffd}').contains(&c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_suites_and_any_output_is_legal_xml() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("merged"), b"a < b & \x1b[0m \xff]]>\n").unwrap();
        let case = |group: &str, test: &str, verdict, reason: Option<&str>| Case {
            group: group.into(),
            test: test.into(),
            outcome: Outcome::of(verdict, reason),
            took: Duration::from_millis(1500),
            directory: directory.path().into(),
        };
        let cases = [
            case("mount", "mount/a", Verdict::Pass, None),
            case("mount", "mount/<b>", Verdict::Fail, Some("ended by signal 11")),
            case("space", "space/c", Verdict::Skip, None),
        ];
        let file = directory.path().join("junit.xml");
        write(&file, &cases).unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        let expected = "\
<testsuites tests=\"3\" failures=\"1\" skipped=\"1\" time=\"4.500\">
  <testsuite name=\"mount\" tests=\"2\" failures=\"1\" skipped=\"0\" time=\"3.000\">
    <testcase name=\"mount/a\" classname=\"mount\" time=\"1.500\"/>
    <testcase name=\"mount/&lt;b&gt;\" classname=\"mount\" time=\"1.500\">
      <failure message=\"ended by signal 11\"/>
      <system-out>a &lt; b &amp; \u{fffd}[0m \u{fffd}]]&gt;
</system-out>
    </testcase>
  </testsuite>
  <testsuite name=\"space\" tests=\"1\" failures=\"0\" skipped=\"1\" time=\"1.500\">
    <testcase name=\"space/c\" classname=\"space\" time=\"1.500\">
      <skipped message=\"SKIP\"/>
      <system-out>a &lt; b &amp; \u{fffd}[0m \u{fffd}]]&gt;
</system-out>
    </testcase>
  </testsuite>
</testsuites>
";
        assert_eq!(text, expected);
    }
}
