//! Half round trips between two ranks, in turns with `ucx_perftest` (Debian: ucx-utils; `UCX_PERFTEST` names another one).
//!
//! `cargo run --release -p rankwise-ucx --example pingpong [rounds]`

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    match std::env::var("PINGPONG_BYTES") {
        Ok(bytes) => linux::rank(bytes.parse().expect("a number of bytes")),
        Err(_) => {
            linux::compare(std::env::args().nth(1).map_or(5, |rounds| rounds.parse().expect("a number of rounds")))
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use rankwise_schedule::{Envelope, Lent, Tag, Transport};
    use rankwise_ucx::{Options, Request, UcxTransport};
    use rankwise_world::World;
    use rankwise_world::launch::{Event, Launch, Output};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn iterations(bytes: usize) -> (usize, usize) {
        if bytes > 1 << 20 { (5, 40) } else { (5_000, 50_000) }
    }

    /// Prints microseconds for half a round trip.
    pub(super) fn rank(bytes: usize) {
        let locks = std::env::var_os("PINGPONG_LOCKS").is_some();
        let world = World::from_env().expect("started by this program");
        let transport = UcxTransport::join(&world, Options { locks, ..Options::default() }).expect("UCX");
        let (me, other) = (world.rank(), 1 - world.rank());
        let data = vec![1_u8; bytes];
        let mut place = vec![0_u8; bytes];
        let (warm, iterations) = iterations(bytes);
        let first = std::env::var_os("PINGPONG_FIRST").map(|_| [1, 2, 3]);
        let mut began = Instant::now();
        for i in 0..warm + iterations {
            if i == warm {
                began = Instant::now();
            }
            let tag = Tag { communicator: 1, sequence: i as u64, lane: 0, round: 0 };
            let at = Envelope { peer: other, tag, words: first };
            let (from, into) = (Lent { ptr: data.as_ptr().cast_mut(), bytes }, Lent { ptr: place.as_mut_ptr(), bytes });
            // SAFETY: the memory outlives the requests, which are waited for.
            unsafe {
                if me == 0 {
                    wait(&transport, transport.send(at, from));
                }
                wait(&transport, transport.receive(at, into));
                if me == 1 {
                    wait(&transport, transport.send(at, from));
                }
            }
        }
        let half = began.elapsed().as_secs_f64() * 1e6 / iterations as f64 / 2.0;
        assert!(place.iter().all(|byte| *byte == 1));
        if me == 0 {
            println!("half {half}");
        }
    }

    fn wait(transport: &UcxTransport, request: rankwise_core::Result<Option<Request>>) {
        let Some(mut request) = request.expect("a message") else { return };
        while !transport.test(&mut request).expect("a message") {
            transport.progress();
        }
    }

    fn ours(transports: &str, bytes: usize, extra: &[&str]) -> f64 {
        let mut half = f64::NAN;
        let mut launch = Launch::new(2, std::env::current_exe().expect("a path"))
            .env("PINGPONG_BYTES", bytes.to_string())
            .env("UCX_TLS", transports)
            .env("UCX_NET_DEVICES", "lo")
            .timeout(Duration::from_secs(120))
            .output(Output::Lines);
        for name in extra {
            launch = launch.env(name, "1");
        }
        let outcome = launch.spawn().expect("two ranks").run(&mut |event| {
            if let Event::Line { text, .. } = event {
                match String::from_utf8_lossy(&text).trim().strip_prefix("half ") {
                    Some(value) => half = value.parse().unwrap_or(f64::NAN),
                    None => eprintln!("{}", String::from_utf8_lossy(&text)),
                }
            }
        });
        assert!(outcome.success(), "{outcome:?}");
        half
    }

    fn perftest(transports: &str, bytes: usize) -> Option<f64> {
        let program = std::env::var("UCX_PERFTEST").unwrap_or_else(|_| "ucx_perftest".into());
        let port = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port().to_string();
        let (warm, iterations) = iterations(bytes);
        let start = |arguments: &[&str]| {
            Command::new(&program)
                .args(["-p", &port])
                .args(arguments)
                .env("UCX_TLS", transports)
                .env("UCX_NET_DEVICES", "lo")
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
        };
        let mut server = start(&[]).map_err(|error| eprintln!("no {program}: {error}")).ok()?;
        std::thread::sleep(Duration::from_millis(500));
        let (size, n, w) = (bytes.to_string(), iterations.to_string(), warm.to_string());
        let client = start(&["127.0.0.1", "-t", "tag_lat", "-s", &size, "-n", &n, "-w", &w, "-f", "-v"]).ok()?;
        let output = client.wait_with_output().ok()?;
        if server.try_wait().ok()?.is_none() {
            std::thread::sleep(Duration::from_millis(200));
        }
        server.kill().ok();
        server.wait().ok()?;
        // Iterations, median, average and overall latency, bandwidths, rates.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let row = text.lines().rfind(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
        row.split(',').nth(3)?.trim().parse().ok()
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub(super) fn compare(rounds: usize) {
        let ucx = rankwise_ucx::library().expect("UCX");
        println!("UCX {:?}, {rounds} rounds in turns, median half round trip in us", ucx.version);
        println!(
            "{:<10} {:>9} {:>10} {:>10} {:>10} {:>13} {:>8}",
            "UCX_TLS", "bytes", "ours", "locked", "first", "ucx_perftest", "ratio"
        );
        for transports in ["shm,self", "posix,self", "tcp,self"] {
            for bytes in [8, 16 << 20] {
                let mut columns = [const { Vec::new() }; 4];
                for _ in 0..rounds {
                    columns[0].push(ours(transports, bytes, &[]));
                    columns[3].extend(perftest(transports, bytes));
                    columns[1].push(ours(transports, bytes, &["PINGPONG_LOCKS"]));
                    columns[2].push(ours(transports, bytes, &["PINGPONG_FIRST"]));
                }
                let [plain, locked, first, theirs] = columns.map(median);
                println!(
                    "{transports:<10} {bytes:>9} {plain:>10.3} {locked:>10.3} {first:>10.3} {theirs:>13.3} {:>8.3}",
                    plain / theirs
                );
            }
        }
    }
}
