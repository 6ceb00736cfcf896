//! `rankwise token` and what `rankwise launch` says about several hosts.
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

fn rankwise(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rankwise")).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_new_token_is_for_this_user_only_and_never_shown() {
    let path = std::env::temp_dir().join(format!("rankwise-cli-token-{}", std::process::id()));
    let file = path.to_str().unwrap();
    let first = rankwise(&["token", "new", file]);
    assert!(first.status.success(), "{}", said(&first));
    assert_eq!(said(&first), "");
    let token = std::fs::read_to_string(&path).unwrap();
    assert_eq!(token.trim_end().len(), 64);
    assert!(token.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let again = rankwise(&["token", "new", file]);
    assert_eq!(again.status.code(), Some(1));
    assert!(said(&again).contains("exists already"), "{}", said(&again));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), token);

    // The launcher hands on where it is, not what it is.
    let script = "env; tr '\\0' '\\n' </proc/$$/cmdline";
    let across = ["launch", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "0"];
    let launched = rankwise(&[&across[..], &["--token-file", file, "-n", "1", "--", "sh", "-c", script]].concat());
    let text = said(&launched);
    assert!(launched.status.success(), "{text}");
    for line in ["[0] RANKWISE_WORLD_SIZE=2", "[0] RANKWISE_LOCAL_SIZE=1", "[0] RANKWISE_ADDRESS=127.0.0.1"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains(&format!("[0] RANKWISE_TOKEN_FILE={file}")), "{text}");
    assert!(text.contains("rank 0 listens on 127.0.0.1:") && text.contains("--master-port"), "{text}");
    assert!(!text.contains(token.trim_end()) && !text.contains("RANKWISE_BACKEND=shm"), "{text}");

    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let open = rankwise(&[&across[..], &["--token-file", file, "-n", "1", "--", "true"]].concat());
    assert!(!open.status.success() && said(&open).contains("0600"), "{}", said(&open));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn options_for_several_hosts_come_together() {
    for (args, named) in [
        (&["--nnodes", "2"][..], "--master-addr"),
        (&["--nnodes", "2", "--master-addr", "127.0.0.1"], "--token-file"),
        (&["--node-rank", "1"], "--nnodes"),
        (&["--token-file", "x"], "--nnodes"),
    ] {
        let output = rankwise(&[&["launch", "-n", "1"][..], args, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said(&output).contains(named), "{args:?}: {}", said(&output));
    }
}
