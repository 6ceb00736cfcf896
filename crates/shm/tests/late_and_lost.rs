//! The death of a member is noticed while another one is merely late.
#![cfg(all(target_os = "linux", not(loom)))]

use rankwise_core::{Backend, Config, ErrorKind};
use rankwise_world::World;
use rankwise_world::launch::{Event, Launch, Output};
use std::time::{Duration, Instant};

#[test]
fn as_a_rank() {
    if std::env::var("RANKWISE_TEST_ROLE").is_err() {
        println!("nothing to do: this is the program that the other test launches");
        return;
    }
    let world = World::from_env().unwrap();
    let config = Config::new().timeout(Duration::from_secs(20));
    let raw = rankwise_shm::driver().join(&world, &config).unwrap();
    let backend = Backend::new(raw, config.resolve().unwrap());
    let mut comm = backend.world().unwrap();
    comm.barrier().unwrap();
    match world.rank() {
        0 => {
            std::thread::sleep(Duration::from_millis(300));
            let began = Instant::now();
            let error = comm.barrier().unwrap_err();
            println!("REPORT {:?} {:?} after {:?}", error.kind(), error.peers(), began.elapsed());
            assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerLost, &[2_usize][..]));
            assert!(began.elapsed() < Duration::from_millis(2500), "{:?}", began.elapsed());
        }
        1 => {
            std::thread::sleep(Duration::from_secs(3));
            let _ = comm.barrier();
        }
        // SAFETY: ends this process at once.
        _ => unsafe {
            libc::raise(libc::SIGKILL);
        },
    }
}

#[test]
fn a_death_is_noticed_while_another_member_is_late() {
    let mut lines = Vec::new();
    Launch::new(3, std::env::current_exe().unwrap())
        .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
        .env("RANKWISE_TEST_ROLE", "lost")
        .timeout(Duration::from_secs(60))
        .output(Output::Lines)
        .grace(Duration::from_secs(10))
        .spawn()
        .unwrap()
        .run(&mut |event| {
            if let Event::Line { rank, text, .. } = event {
                lines.push(format!("[{rank}] {}", String::from_utf8_lossy(&text)));
            }
        });
    let all = lines.join("\n");
    let report = lines.iter().find(|line| line.contains("REPORT"));
    assert!(report.is_some_and(|line| line.contains("PeerLost")) && !all.contains("panicked at"), "{all}");
}
