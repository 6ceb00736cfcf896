//! `peers.toml`: how each peer is started. Every complaint has file and line.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use toml::Spanned;

/// Largest file that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// A library to measure, as its file says it, with `{dir}` replaced.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Program and arguments; `{ranks}` stands for the number of ranks.
    pub(crate) command: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Added when ranks outnumber processors.
    pub(crate) oversubscribed_env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    peer: Vec<RawPeer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPeer {
    name: Spanned<String>,
    #[serde(default)]
    version: String,
    command: Spanned<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<Spanned<String>, String>,
    #[serde(default)]
    oversubscribed_env: BTreeMap<Spanned<String>, String>,
}

/// Reads `DIR/peers.toml`; at least one peer.
pub(crate) fn read(dir: &str) -> Result<Vec<Peer>, String> {
    let path = Path::new(dir).join("peers.toml");
    let shown = path.display().to_string();
    let cannot = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            format!("{shown} does not exist; run peers/setup {dir} first (it is in the repository of rankwise)")
        }
        _ => format!("{shown} cannot be read: {error}"),
    };
    // Anything else may never end, or block.
    if !std::fs::metadata(&path).map_err(cannot)?.is_file() {
        return Err(format!("{shown} is no regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(&path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes)).map_err(cannot)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("{shown} has more than {MOST_BYTES} bytes; is it what peers/setup wrote?"));
    }
    let text = String::from_utf8(bytes).map_err(|error| format!("{shown} is no UTF-8 text: {error}"))?;
    let absolute = std::fs::canonicalize(dir).map_err(cannot)?;
    let absolute = absolute.to_str().ok_or_else(|| format!("the path of {dir} is no UTF-8 text; move it"))?;
    parse(&shown, absolute, &text)
}

/// Those of the names that the user wants, in that order; all when none are named. Their programs exist.
pub(crate) fn choose(all: Vec<Peer>, names: &[String]) -> Result<Vec<Peer>, String> {
    let known = || all.iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>().join(", ");
    let find = |name: &String| all.iter().find(|peer| peer.name == *name).cloned();
    let chosen = match names {
        [] => all.clone(),
        names => super::super::args::once(names.to_vec())
            .iter()
            .map(|name| find(name).ok_or_else(|| format!("there is no peer {name:?}; known: {}", known())))
            .collect::<Result<_, _>>()?,
    };
    for peer in &chosen {
        let program = &peer.command[0];
        let path = peer.env.get("PATH").cloned().or_else(|| std::env::var("PATH").ok()).unwrap_or_default();
        let executable = |path: &Path| {
            std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
        };
        let found = match program.contains('/') {
            true => executable(Path::new(program)),
            false => path.split(':').any(|directory| executable(&Path::new(directory).join(program))),
        };
        if !found {
            return Err(format!(
                "the command {program:?} of the peer {} was not found; run peers/setup again, or leave the peer out with --peer",
                peer.name
            ));
        }
    }
    Ok(chosen)
}

fn parse(file: &str, dir: &str, text: &str) -> Result<Vec<Peer>, String> {
    let place = |span: &Range<usize>| {
        let before = text.as_bytes().get(..span.start).unwrap_or(text.as_bytes());
        format!("{file}:{}", 1 + before.iter().filter(|byte| **byte == b'\n').count())
    };
    let raw: RawFile = toml::from_str(text).map_err(|error| {
        let message = error.message().trim().replace('\n', " ");
        format!("{}: {message}", error.span().map_or_else(|| file.to_string(), |span| place(&span)))
    })?;
    let mut peers: Vec<Peer> = Vec::new();
    for raw in raw.peer {
        let name = raw.name.get_ref().clone();
        let at = |span: Range<usize>, problem: String| Err(format!("{}: {problem}", place(&span)));
        if name.is_empty() || name.len() > 64 || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
        {
            return at(raw.name.span(), format!("the name {name:?} is not 1 to 64 letters, digits, -, _, . or +"));
        }
        if rankwise::driver(&name).is_ok() {
            return at(raw.name.span(), format!("{name:?} is a backend; give the peer another name"));
        }
        if peers.iter().any(|peer| peer.name == name) {
            return at(raw.name.span(), format!("there are two peers {name:?}; give one another name"));
        }
        let command = raw.command.get_ref();
        if command.first().is_none_or(String::is_empty) || command.iter().any(|word| word.contains('\0')) {
            return at(raw.command.span(), format!("the command of {name:?} is empty, or has a zero byte"));
        }
        let variables = |table: BTreeMap<Spanned<String>, String>| {
            let one = |(name, value): (Spanned<String>, String)| {
                let key = name.get_ref();
                if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                    return Err(format!("{}: {key:?} can be no environment variable", place(&name.span())));
                }
                Ok((key.clone(), value.replace("{dir}", dir)))
            };
            table.into_iter().map(one).collect::<Result<BTreeMap<_, _>, String>>()
        };
        peers.push(Peer {
            name,
            version: if raw.version.is_empty() { "unknown version".into() } else { raw.version },
            command: command.iter().map(|word| word.replace("{dir}", dir)).collect(),
            env: variables(raw.env)?,
            oversubscribed_env: variables(raw.oversubscribed_env)?,
        });
    }
    if peers.is_empty() {
        return Err(format!("{file} has no [[peer]]; run peers/setup again and read what it left out"));
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "[[peer]]\nname = \"a\"\nversion = \"1.2\"\ncommand = [\"{dir}/bin/a\", \"-n\", \"{ranks}\"]\n\n\
                       [peer.env]\nHOME = \"{dir}\"\n\n[[peer]]\nname = \"b\"\ncommand = [\"sh\"]\n";

    #[test]
    fn tables_become_peers() {
        let peers = parse("peers.toml", "/some/where", TWO).unwrap();
        assert_eq!(peers[0].command, ["/some/where/bin/a", "-n", "{ranks}"]);
        assert_eq!((peers[0].env["HOME"].as_str(), peers[0].version.as_str()), ("/some/where", "1.2"));
        assert_eq!((peers[1].name.as_str(), peers[1].version.as_str()), ("b", "unknown version"));
        let chosen = choose(peers.clone(), &["b".into(), "b".into()]).unwrap();
        assert_eq!(chosen, [peers[1].clone()]);
        assert!(choose(peers.clone(), &["c".into()]).unwrap_err().contains("known: a, b"));
        assert!(choose(peers, &[]).unwrap_err().contains("/some/where/bin/a"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to, line, named) in [
            ("version", "verzion", 3, "unknown field"),
            ("\"1.2\"", "1.2", 3, "string"),
            ("\"1.2\"", "\"1.2", 3, ""),
            ("\"b\"", "\"a\"", 10, "two peers"),
            ("\"b\"", "\"shm\"", 10, "is a backend"),
            ("\"b\"", "\"b c\"", 10, "letters"),
            ("[\"sh\"]", "[]", 11, "is empty"),
            ("HOME", "\"A=B\"", 7, "environment variable"),
            ("[peer.env]", "[peer.env2]", 6, "unknown field"),
        ] {
            let error = parse("peers.toml", "/", &TWO.replacen(from, to, 1)).unwrap_err();
            assert!(error.starts_with(&format!("peers.toml:{line}: ")) && error.contains(named), "{to}: {error}");
        }
        assert!(parse("peers.toml", "/", "").unwrap_err().contains("no [[peer]]"));
        assert!(parse("peers.toml", "/", "[[peer]]\nname = \"a\"\n").unwrap_err().contains("command"));
        for (dir, named) in
            [("/no/such/directory", "run peers/setup /no/such/directory"), ("/dev/null", "run peers/setup")]
        {
            assert!(read(dir).unwrap_err().contains(named), "{dir}");
        }
    }
}
