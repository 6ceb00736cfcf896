//! `cargo xtask readme`: what the documentation tells people to type is typed here first.
//!
//! Every line of a ```` ```sh ```` fence runs, except lines marked with a reason. `# needs ...` or `# not run: ...` at
//! the end of a command marks that command; on a line of its own it marks what follows up to the next blank line.

use crate::{Outcome, machine, steps};
use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Beginnings of the comments that mark a command.
const MARKERS: &[&str] = &["# needs ", "# not run: "];

/// Commands that would run the run that checks them.
const RECURSIVE: &[&str] = &["cargo xtask test", ".ci/run", "bash .ci/run", "cargo xtask readme"];

/// A block that takes longer is no quick start.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// A fenced block.
pub(crate) struct Block {
    /// First word after the backticks.
    pub(crate) language: String,
    /// Line of the opening fence.
    pub(crate) line: usize,
    /// False when the file ends inside it.
    pub(crate) closed: bool,
    /// Its lines, for `sh`.
    pub(crate) commands: Vec<CommandLine>,
}

/// A line of a block: a command or a part of one.
pub(crate) struct CommandLine {
    pub(crate) line: usize,
    pub(crate) text: String,
    /// Why it is not run.
    pub(crate) marker: Option<String>,
}

/// True for the files whose commands are checked: README.md, CONTRIBUTING.md and the pages below docs/.
pub(crate) fn is_checked(path: &str) -> bool {
    matches!(path, "README.md" | "CONTRIBUTING.md") || (path.starts_with("docs/") && path.ends_with(".md"))
}

/// Fenced blocks of a Markdown text, in order.
pub(crate) fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<(String, Vec<(usize, &str)>)> = None;
    for (index, line) in markdown.lines().enumerate() {
        let trimmed = line.trim_start();
        match &mut open {
            None if trimmed.starts_with("```") => {
                let fence: String = trimmed.chars().take_while(|c| *c == '`').collect();
                let info = trimmed[fence.len()..].trim();
                let language = info.split([' ', ',', '{']).next().unwrap_or("").to_string();
                blocks.push(Block { language, line: index + 1, closed: false, commands: Vec::new() });
                open = Some((fence, Vec::new()));
            }
            None => {}
            Some((fence, lines)) => {
                if trimmed.starts_with(fence.as_str()) && trimmed.trim_end().chars().all(|c| c == '`') {
                    close(&mut blocks, lines);
                    open = None;
                } else {
                    lines.push((index + 1, line));
                }
            }
        }
    }
    if let Some((_, lines)) = &open {
        close(&mut blocks, lines);
        if let Some(last) = blocks.last_mut() {
            last.closed = false;
        }
    }
    blocks
}

fn close(blocks: &mut [Block], lines: &[(usize, &str)]) {
    if let Some(block) = blocks.last_mut() {
        block.closed = true;
        if block.language == "sh" {
            block.commands = command_lines(lines);
        }
    }
}

fn command_lines(lines: &[(usize, &str)]) -> Vec<CommandLine> {
    let mut commands: Vec<CommandLine> = Vec::new();
    let mut section: Option<String> = None;
    let mut continued = false;
    for &(line, text) in lines {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            section = None;
        } else if trimmed.starts_with('#') && !continued {
            section = marker(trimmed).or(section);
        } else {
            let mut own = marker(text).or_else(|| section.clone());
            if RECURSIVE.iter().any(|command| trimmed.starts_with(command)) {
                own = Some("it runs this check itself".to_string());
            }
            if continued {
                own = commands.last().and_then(|first| first.marker.clone()).or(own);
            }
            commands.push(CommandLine { line, text: text.to_string(), marker: own });
            continued = trimmed.ends_with('\\');
        }
    }
    commands
}

/// The reason that `line` ends with or consists of: `needs X`, or what follows `not run: `.
fn marker(line: &str) -> Option<String> {
    let start = MARKERS.iter().filter_map(|marker| line.find(marker)).min()?;
    let reason = line[start + 2..].trim();
    Some(reason.strip_prefix("not run: ").unwrap_or(reason).to_string())
}

/// Runs the blocks of the checked files, or of the files named.
pub(crate) fn readme(arguments: &[String]) -> Outcome {
    let files = if arguments.is_empty() { checked_files()? } else { arguments.to_vec() };
    let (mut run, mut failed, mut marked) = (0, 0, 0);
    for path in &files {
        let text = std::fs::read_to_string(machine::root().join(path)).map_err(|error| format!("{path}: {error}"))?;
        for block in blocks(&text).iter().filter(|block| block.language == "sh") {
            for command in block.commands.iter().filter(|command| command.marker.is_some()) {
                marked += 1;
                let why = command.marker.as_deref().unwrap_or("");
                println!("skipped: {path}:{}: `{}`: {why}", command.line, command.text.trim());
            }
            let script: String = block
                .commands
                .iter()
                .filter(|command| command.marker.is_none())
                .map(|command| command.text.clone() + "\n")
                .collect();
            if script.is_empty() {
                continue;
            }
            run += 1;
            println!("\n## {path}:{}", block.line);
            if let Err(why) = run_script(&script) {
                failed += 1;
                println!("FAILED {path}:{}: {why}", block.line);
            }
        }
    }
    println!("\n{run} blocks of commands run, {failed} failed, {marked} lines not run");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn checked_files() -> Result<Vec<String>, Box<dyn Error>> {
    let mut files = vec!["README.md".to_string(), "CONTRIBUTING.md".to_string()];
    let mut open = vec!["docs".to_string()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(machine::root().join(&directory))? {
            let entry = entry?;
            let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                open.push(path);
            } else if is_checked(&path) {
                files.push(path);
            }
        }
    }
    files.retain(|path| machine::root().join(path).is_file());
    files.sort();
    Ok(files)
}

/// Runs a block as one script, so that its lines may build on each other.
fn run_script(script: &str) -> Result<(), String> {
    let mut child = Command::new("bash")
        .args(["-euxo", "pipefail", "-c", script])
        .current_dir(machine::root())
        .stdin(std::process::Stdio::null())
        .spawn()
        .map_err(|error| format!("bash does not start: {error}"))?;
    match steps::wait(&mut child, Instant::now() + LIMIT) {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(status.to_string()),
        None => Err(format!("still running after {} s", LIMIT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(markdown: &str) -> Vec<(String, Option<String>)> {
        blocks(markdown)
            .into_iter()
            .flat_map(|block| block.commands)
            .map(|command| (command.text.trim().to_string(), command.marker))
            .collect()
    }

    #[test]
    fn only_sh_fences_hold_commands() {
        let markdown = "a\n```rust\nfn f() {}\n```\n```text\nrm -rf x\n```\n  ```sh\n  echo 1\n\n  echo 2\n  ```\n";
        assert_eq!(commands(markdown), [("echo 1".to_string(), None), ("echo 2".to_string(), None)]);
    }

    #[test]
    fn markers_cover_one_command_or_up_to_the_blank_line() {
        let markdown = "```sh\na\nb  # needs two hosts\n# needs a GPU\nc\nd\n\n# just a remark\ne \\\n  f\n# not run: slow\ng \\\n  h\n```\n";
        let reasons: Vec<Option<String>> = commands(markdown).into_iter().map(|(_, marker)| marker).collect();
        let expected = [None, Some("needs two hosts"), Some("needs a GPU"), Some("needs a GPU"), None, None];
        let expected = expected.into_iter().chain([Some("slow"), Some("slow")]);
        assert_eq!(reasons, expected.map(|reason| reason.map(String::from)).collect::<Vec<_>>());
    }

    #[test]
    fn the_run_itself_is_not_run_again() {
        assert!(commands("```sh\ncargo xtask test --only fmt\n```\n")[0].1.is_some());
        assert!(commands("```sh\ncargo xtask tidy\n```\n")[0].1.is_none());
    }

    #[test]
    fn longer_fences_and_unclosed_ones() {
        let nested = blocks("````md\n```sh\nx\n```\n````\n```sh\ny\n");
        assert_eq!(nested.len(), 2);
        assert_eq!((nested[0].language.as_str(), nested[0].closed), ("md", true));
        assert_eq!((nested[1].language.as_str(), nested[1].closed), ("sh", false));
        assert_eq!(nested[1].commands.len(), 1);
    }

    #[test]
    fn a_failing_block_is_an_error_and_a_pipe_does_not_hide_it() {
        assert!(run_script("true\n").is_ok());
        assert!(run_script("false | cat\n").is_err());
        assert!(run_script("echo $undefined_name\n").is_err());
    }
}
