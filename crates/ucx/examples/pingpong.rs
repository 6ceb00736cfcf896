//! Half round trips between two ranks, in turns with `ucx_perftest` (Debian: ucx-utils; `UCX_PERFTEST` names another one).
//!
//! `cargo run --release -p rankwise-ucx --example pingpong [rounds [UCX_TLS ...]]`

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
    use rankwise_ucx::{Options, Request, UcxTransport, Watching};
    use rankwise_world::World;
    use rankwise_world::launch::{Event, Launch, Output};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn iterations(bytes: usize) -> (usize, usize) {
        if bytes > 1 << 20 { (3, 12) } else { (2_000, 20_000) }
    }

    /// Prints microseconds for half a round trip.
    pub(super) fn rank(bytes: usize) {
        let locks = std::env::var_os("PINGPONG_LOCKS").is_some();
        let watching = std::env::var_os("PINGPONG_WATCHED").map(|_| Watching::Ucx);
        let world = World::from_env().expect("started by this program");
        let transport = UcxTransport::join(&world, Options { locks, watching, ..Options::default() }).expect("UCX");
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
        let mut passes = 0_u32;
        loop {
            passes = passes.wrapping_add(1);
            // UCX counts what it moves; a message that ends without is found by the other looks.
            if (transport.progress() || passes % 16 == 1) && transport.test(&mut request).expect("a message") {
                return;
            }
            // Without it the looks slow down the core that writes: 20 ns more.
            std::hint::spin_loop();
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
        let row = text.lines().map(str::trim).rfind(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
        row.split(',').nth(3)?.trim().parse().ok()
    }

    /// The quickest and the middle one.
    fn summary(mut values: Vec<f64>) -> [f64; 2] {
        values.sort_by(f64::total_cmp);
        [0, values.len() / 2].map(|index| values.get(index).copied().unwrap_or(f64::NAN))
    }

    pub(super) fn compare(rounds: usize) {
        let ucx = rankwise_ucx::library().expect("UCX");
        println!("UCX {:?}, {rounds} rounds in turns; half round trips in us: quickest / median", ucx.version);
        println!(
            "locked: UCX locks its worker; first: each message carries a call's descriptor; watched: by UCX; ratio: ours / ucx_perftest"
        );
        let title = ["ours", "locked", "first", "watched", "ucx_perftest", "ratio"];
        println!("{:<12} {:>8} {}", "UCX_TLS", "bytes", title.map(|name| format!("{name:>21}")).join(" "));
        let mut lists: Vec<String> = std::env::args().skip(2).collect();
        if lists.is_empty() {
            lists.extend(["shm,self", "posix,self", "tcp,self", "shm,tcp,self"].map(String::from));
        }
        for transports in lists.iter().map(String::as_str) {
            for bytes in [8, 16 << 20] {
                let mut columns = [const { Vec::new() }; 5];
                for _ in 0..rounds {
                    columns[0].push(ours(transports, bytes, &[]));
                    columns[3].extend(perftest(transports, bytes));
                    columns[1].push(ours(transports, bytes, &["PINGPONG_LOCKS"]));
                    columns[2].push(ours(transports, bytes, &["PINGPONG_FIRST"]));
                    if transports.contains("tcp") {
                        columns[4].push(ours(transports, bytes, &["PINGPONG_WATCHED"]));
                    }
                }
                let columns = columns.map(summary);
                let ratio = [0, 1].map(|index| columns[0][index] / columns[3][index]);
                let cells = [columns[0], columns[1], columns[2], columns[4], columns[3], ratio];
                let cells = cells.map(|[quickest, median]| format!("{quickest:>10.3} {median:>10.3}"));
                println!("{transports:<12} {bytes:>8} {}", cells.join(" "));
            }
        }
    }
}
