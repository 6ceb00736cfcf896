//! `--html FILE` and `--svg DIR`.

use super::figures::{Figures, Panel};
use super::lines::Picture;
use super::{bars, heat, lines, sheet};
use crate::bench::results::same_file;
use rustix::fs::{Access, access};
use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

/// Where pictures go, if anywhere.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct PictureFiles {
    /// Also draw what was measured: one HTML file that needs no network; an existing file is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Also draw what was measured: an SVG file for each picture, in that directory
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
}

impl PictureFiles {
    pub(crate) fn wanted(&self) -> bool {
        self.html.is_some() || self.svg.is_some()
    }

    /// Finds out before anything is measured whether the files can be written, and creates the directory. `others` are files
    /// that must not be replaced.
    pub(crate) fn check(&self, others: &[&str]) -> Result<(), String> {
        if let Some(path) = &self.html {
            if let Some(other) = others.iter().find(|other| same_place(path, Path::new(other))) {
                return Err(format!("--html would replace {other}; name another file"));
            }
            check_file(path).map_err(|why| format!("--html {}: {why}", path.display()))?;
        }
        if let Some(path) = &self.svg {
            check_directory(path).map_err(|why| format!("--svg {}: {why}", path.display()))?;
        }
        Ok(())
    }

    /// Draws; the files that were written.
    pub(crate) fn write(&self, figures: &Figures) -> Result<Vec<String>, String> {
        if !self.wanted() {
            return Ok(Vec::new());
        }
        if figures.is_empty() {
            return Err("nothing was measured, no picture".into());
        }
        let panels = figures.panels();
        let mut written = Vec::new();
        let mut put = |path: &Path, text: &str| {
            let shown = path.display().to_string();
            fs::write(path, text).map_err(|error| format!("{shown}: cannot be written: {error}"))?;
            written.push(shown);
            Ok::<(), String>(())
        };
        if let Some(path) = &self.html {
            put(path, &sheet::html(figures, &panels))?;
        }
        if let Some(directory) = &self.svg {
            let mut taken = HashSet::new();
            for picture in pictures(figures, &panels) {
                let name = file_name(&picture.slug, &mut taken);
                put(&directory.join(format!("{name}.svg")), &picture.svg.standalone(&picture.label))?;
            }
        }
        Ok(written)
    }

    /// Draws after a run, if pictures are wanted; whether that went well. Says on standard error what was written, or why not.
    pub(crate) fn draw(&self, figures: impl FnOnce() -> Figures) -> bool {
        if !self.wanted() {
            return true;
        }
        match self.write(&figures()) {
            Ok(written) => eprintln!("# {}", self.summary(written.len())),
            Err(message) => {
                eprintln!("rankwise: {message}");
                return false;
            }
        }
        true
    }

    fn summary(&self, written: usize) -> String {
        let page = self.html.as_ref().map(|path| path.display().to_string());
        let drawn = self.svg.as_ref().map(|path| {
            let files = written - usize::from(self.html.is_some());
            format!("{files} SVG in {}", path.display())
        });
        format!("pictures: {}", page.into_iter().chain(drawn).collect::<Vec<_>>().join(", "))
    }
}

fn pictures(figures: &Figures, panels: &[Panel<'_>]) -> Vec<Picture> {
    let mut pictures = lines::pictures(&figures.names, panels);
    pictures.extend(heat::pictures(figures, panels, usize::MAX));
    pictures.extend(bars::all(&figures.workloads));
    pictures
}

/// Letters, digits and a few signs, and a number where that makes two names the same.
fn file_name(slug: &str, taken: &mut HashSet<String>) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '-' };
    let name: String = slug.chars().map(safe).take(200).collect();
    let numbered = (2..).map(|n| format!("{name}-{n}"));
    let free = std::iter::once(name.clone()).chain(numbered).find(|name| taken.insert(name.to_lowercase()));
    free.unwrap_or(name)
}

/// Whether both are one file, or would be.
fn same_place(one: &Path, other: &Path) -> bool {
    one == other || one.to_str().zip(other.to_str()).is_some_and(|(one, other)| same_file(one, other))
}

fn check_file(path: &Path) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(data) if data.is_dir() => Err("is a directory; name a file in it".into()),
        // Devices and pipes are opened once only, when there is something to write.
        Ok(data) if !data.is_file() => Ok(()),
        Ok(_) => match OpenOptions::new().append(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("cannot be written: {error}")),
        },
        Err(_) => {
            let parent = match path.parent() {
                Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
                Some(parent) => parent,
                None => return Err("is no name of a file".into()),
            };
            if !parent.is_dir() {
                return Err(format!("{} is no directory; create it or name another file", parent.display()));
            }
            writable(parent)
        }
    }
}

fn check_directory(path: &Path) -> Result<(), String> {
    if path.exists() && !path.is_dir() {
        return Err("is a file; name a directory".into());
    }
    fs::create_dir_all(path).map_err(|error| format!("cannot be created: {error}"))?;
    writable(path)
}

fn writable(directory: &Path) -> Result<(), String> {
    access(directory, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("no file can be created in {}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::super::bars::tests::times;
    use super::super::figures::tests::{cell, figures};
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("rankwise-pictures-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn files(&self, html: &str, svg: &str) -> PictureFiles {
            let under = |name: &str| (!name.is_empty()).then(|| self.0.join(name));
            PictureFiles { html: under(html), svg: under(svg) }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn each_picture_is_a_file() {
        let folder = Folder::new("each");
        let files = folder.files("a.html", "new/svg");
        files.check(&[]).unwrap();
        let mut figures = figures(&["shm", "mpi"], vec![cell("all_reduce", 2, 8, &[Some(1.0), Some(2.0)], 5.0)]);
        figures.workloads = vec![times("shm", "", &[("all_reduce", 3.0)])];
        let written = files.write(&figures).unwrap();
        let names: Vec<_> = written.iter().map(|path| path.rsplit('/').next().unwrap()).collect();
        let expected = [
            "a.html",
            "time-all_reduce-f32-2ranks.svg",
            "busbw-all_reduce-f32-2ranks.svg",
            "heat-mpi.svg",
            "workloads.svg",
        ];
        assert_eq!(names, expected);
        for path in &written[1..] {
            let text = fs::read_to_string(path).unwrap();
            assert!(
                text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && text.ends_with("</svg>\n"),
                "{path}"
            );
            assert_eq!(text.matches("http").count(), 1);
        }
        let line = files.summary(written.len());
        assert!(line.contains("a.html, 4 SVG in "), "{line}");
    }

    #[test]
    fn names_of_files_are_harmless_and_different() {
        let mut taken = HashSet::new();
        let names = ["heat-../../etc/pass wd", "heat-shm#2", "heat-shm-2", "heat-SHM-2"]
            .map(|slug| file_name(slug, &mut taken));
        assert_eq!(names, ["heat-..-..-etc-pass-wd", "heat-shm-2", "heat-shm-2-2", "heat-SHM-2-3"]);
        assert_eq!(file_name(&"\u{e4}".repeat(300), &mut taken).len(), 200);
    }

    #[test]
    fn without_a_measurement_there_is_no_picture() {
        let folder = Folder::new("none");
        let files = folder.files("a.html", "");
        let nothing = figures(&["shm"], vec![cell("all_reduce", 2, 8, &[None], 5.0)]);
        assert_eq!(files.write(&nothing), Err("nothing was measured, no picture".into()));
        assert!(!folder.0.join("a.html").exists());
        assert!(PictureFiles::default().draw(|| panic!("not wanted")) && !files.draw(|| nothing));
    }

    #[test]
    fn what_cannot_be_written_is_refused_and_left_alone() {
        let folder = Folder::new("refused");
        let kept = folder.0.join("kept");
        fs::write(&kept, "old").unwrap();
        for (files, named) in [
            (folder.files("", "kept"), "is a file; name a directory"),
            (folder.files("", "kept/below"), "cannot be created"),
            (folder.files("missing/a.html", ""), "is no directory; create it"),
            (folder.files(".", ""), "is a directory; name a file in it"),
        ] {
            let error = files.check(&[]).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        let same = folder.files("kept", "").check(&[&folder.0.join("./kept").to_string_lossy()]);
        assert!(same.unwrap_err().contains("would replace"));
        folder.files("kept", "").check(&["elsewhere"]).unwrap();
        folder.files("fresh.html", "").check(&[]).unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "old");
        assert!(!folder.0.join("fresh.html").exists());
    }
}
