//! Measures pleach and kubectl with the same workload: `make bench`.
//!
//! Arguments: `--quick`, `-o json`, `--rounds N`, `--only TEXT`, `--pleach FILE`,
//! `--engines FILE`. Instead of that workload, `--loop N` measures the controller and `--page N` its
//! page with N releases, `--nodes N` a change of N nodes, and `--rehearsal N` that of N
//! applications.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use pleach_testkit::bench::{self, Options, fleet, nodes, page, rehearsal};

/// Duration of the idle phase.
const STANDS: Duration = Duration::from_mins(2);

/// Subject of a measurement that kubectl has no part in, with its size.
enum Subject {
    Loop(usize),
    Page(usize),
    Nodes(usize),
    Rehearsal(usize),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Ignore errors of stderr.
            drop(writeln!(std::io::stderr(), "error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let mut pleach = program.with_file_name("pleach");
    let (mut quick, mut json, mut rounds, mut only) = (false, false, None, None);
    let mut engines = None;
    let mut subject = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))
        };
        let mut number = || {
            let number = value()?.parse();
            number.with_context(|| format!("{argument} needs a number"))
        };
        match argument.as_str() {
            "--quick" => quick = true,
            "-o" | "--output" => {
                json = match value()?.as_str() {
                    "json" => true,
                    "text" => false,
                    other => bail!("{other} is no format; there are text and json"),
                }
            }
            "--rounds" => rounds = Some(number()?),
            "--only" => only = Some(value()?),
            "--loop" => subject = Some(Subject::Loop(number()?)),
            "--page" => subject = Some(Subject::Page(number()?)),
            "--nodes" => subject = Some(Subject::Nodes(number()?)),
            "--rehearsal" => subject = Some(Subject::Rehearsal(number()?)),
            "--engines" => engines = Some(PathBuf::from(value()?)),
            "--pleach" => pleach = PathBuf::from(value()?),
            other => bail!(
                "unknown argument {other}; there are --quick, -o json, --rounds N, --only TEXT, --loop N, --page N, --nodes N, --rehearsal N, --pleach FILE, --engines FILE"
            ),
        }
    }
    let pleach = found_from_anywhere(&pleach)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let report_line = |what: &str| drop(writeln!(std::io::stderr(), "{what}"));
    if let Some(subject) = subject {
        let text = match subject {
            Subject::Loop(releases) => {
                let stands = if quick { STANDS / 12 } else { STANDS };
                let measuring = fleet::measure(&pleach, releases, stands, report_line);
                fleet::text(releases, &runtime.block_on(measuring)?)
            }
            Subject::Page(releases) => {
                let targets = runtime.block_on(page::measure(&pleach, releases, report_line))?;
                page::text(releases, &targets)
            }
            Subject::Nodes(nodes) => {
                let rounds = rounds.unwrap_or(3);
                let measuring = nodes::measure(&pleach, nodes, rounds, report_line);
                runtime.block_on(measuring)?.text()
            }
            Subject::Rehearsal(applications) => {
                let measuring = rehearsal::measure(&pleach, applications);
                runtime.block_on(measuring)?.text()
            }
        };
        write!(std::io::stdout(), "{text}")?;
        return Ok(());
    }
    let mut options = if quick {
        Options::quick(pleach)
    } else {
        Options::full(pleach)
    };
    options.engines = engines.as_deref().map(found_from_anywhere).transpose()?;
    options.rounds = rounds.unwrap_or(options.rounds);
    if let Some(only) = only {
        options
            .workloads
            .retain(|workload| workload.to_string().contains(&only));
    }
    let report = runtime.block_on(bench::run(&options, report_line))?;
    let mut out = std::io::stdout();
    if json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        write!(out, "{}", report.text())?;
    }
    Ok(())
}

/// Returns the absolute path of the program, because it is started in other folders.
fn found_from_anywhere(program: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(program).with_context(|| format!("failed to find {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_program_is_found_from_other_folders() {
        let relative = Path::new("target/release/pleach");
        let found = found_from_anywhere(relative).unwrap();
        assert_eq!(found, std::env::current_dir().unwrap().join(relative));
    }
}
