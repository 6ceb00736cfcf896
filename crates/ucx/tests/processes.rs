//! Messages between real processes. The test binary launches itself: `as_a_rank` is the program, and an environment variable says which part it
//! plays. Without UCX each test says so and passes.
#![cfg(target_os = "linux")]

use rankwise_core::descriptor::Words;
use rankwise_core::{Error, ErrorKind, Result};
use rankwise_schedule::{Envelope, Lent, Tag, Transport};
use rankwise_ucx::{Options, Request, Stuck, UcxTransport, Watch, Watching};
use rankwise_world::World;
use rankwise_world::launch::{Event, Exit, Launch, Outcome, Output};
use std::time::{Duration, Instant};

const ROLE: &str = "RANKWISE_TEST_ROLE";
const WATCHING: &str = "RANKWISE_TEST_WATCHING";
const LONG: Duration = Duration::from_secs(20);

/// `UCX_TLS`, or none for our own choice.
const TRANSPORTS: [Option<&str>; 3] = [None, Some("shm,self"), Some("tcp")];

fn run(ranks: usize, role: &str, environment: &[(&str, &str)]) -> (Outcome, String) {
    let mut lines = Vec::new();
    let mut launch = Launch::new(ranks, std::env::current_exe().unwrap())
        .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env_remove("UCX_TLS")
        .env_remove("UCX_NET_DEVICES")
        .timeout(LONG)
        .output(Output::Lines);
    for (name, value) in environment {
        launch = launch.env(name, value);
    }
    let outcome = launch.spawn().unwrap().run(&mut |event| {
        if let Event::Line { rank, text, .. } = event {
            lines.push(format!("[{rank}] {}", String::from_utf8_lossy(&text)));
        }
    });
    (outcome, lines.join("\n"))
}

/// Runs a part under each choice of transports.
fn passes(ranks: usize, role: &str) {
    if is_absent() {
        return;
    }
    for transports in TRANSPORTS {
        let environment = transports.map(|list| ("UCX_TLS", list));
        let (outcome, lines) = run(ranks, role, environment.as_slice());
        assert!(outcome.success(), "{role} with {ranks} ranks over {transports:?}: {outcome:?}\n{lines}");
    }
}

fn is_absent() -> bool {
    match rankwise_ucx::library() {
        Err(error) if error.kind() == &ErrorKind::NoBackend => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => return false,
    }
    true
}

#[test]
fn as_a_rank() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => println!("nothing to do: this is the program that the other tests launch"),
        Ok("exchange") => exchanges(),
        Ok("mismatch") => mismatches(),
        Ok("cancel") => cancels(),
        Ok("death") => a_peer_dies(false),
        Ok("late-death") => a_peer_dies(true),
        Ok("plan") => a_plan_runs(),
        Ok("traces") => leaves_traces(),
        Ok("settings") => settings(),
        Ok(other) => panic!("unknown role {other}"),
    }
}

fn join() -> UcxTransport {
    let watching = std::env::var(WATCHING).ok().map(|who| if who == "ucx" { Watching::Ucx } else { Watching::Ours });
    UcxTransport::join(&World::from_env().unwrap(), Options { watching, ..Options::default() }).unwrap()
}

fn tag(sequence: u64, round: u32) -> Tag {
    Tag { communicator: 3, sequence, lane: 0, round }
}

fn envelope(peer: usize, tag: Tag, words: Option<Words>) -> Envelope {
    Envelope { peer, tag, words }
}

/// Posts; the memory lives until the request has been waited for.
fn send(to: &UcxTransport, envelope: Envelope, data: &[u8]) -> Result<Option<Request>> {
    let lent = Lent { ptr: data.as_ptr().cast_mut(), bytes: data.len() };
    // SAFETY: the callers wait for the request before the data goes.
    unsafe { to.send(envelope, lent) }
}

fn receive(from: &UcxTransport, envelope: Envelope, data: &mut [u8]) -> Result<Option<Request>> {
    let lent = Lent { ptr: data.as_mut_ptr(), bytes: data.len() };
    // SAFETY: as above.
    unsafe { from.receive(envelope, lent) }
}

fn wait(transport: &UcxTransport, request: Result<Option<Request>>, limit: Duration) -> Result<(), Error> {
    let others = 0..transport.world().size();
    match request? {
        None => Ok(()),
        Some(request) => {
            transport.wait(request, Watch::new(transport, others, limit)).map_err(|Stuck { error, still_lent }| {
                assert!(!still_lent, "the memory is still lent: {error}");
                error
            })
        }
    }
}

fn finish(transport: &UcxTransport, request: Result<Option<Request>>) {
    wait(transport, request, LONG).unwrap();
}

fn pattern(rank: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + rank * 31 + i / 251) as u8).collect()
}

/// All ranks meet, so that nobody leaves early.
fn meet(transport: &UcxTransport, sequence: u64) {
    let (me, n) = (transport.world().rank(), transport.world().size());
    let mut received = vec![0_u8; n];
    let mine = [me as u8];
    let receives: Vec<_> = received
        .chunks_mut(1)
        .enumerate()
        .filter(|(peer, _)| *peer != me)
        .map(|(peer, place)| receive(transport, envelope(peer, tag(sequence, 9), None), place))
        .collect();
    let sends: Vec<_> = (0..n)
        .filter(|peer| *peer != me)
        .map(|peer| send(transport, envelope(peer, tag(sequence, 9), None), &mine))
        .collect();
    receives.into_iter().chain(sends).for_each(|request| finish(transport, request));
}

/// Every rank sends to every other, itself included, in all sizes, with and without descriptor, receives first and late.
fn exchanges() {
    let transport = join();
    let (me, n) = (transport.world().rank(), transport.world().size());
    let mut sequence = 0;
    for length in [0, 1, 8, 92, 4095, 4096, 4097, 8192, 100_001, 1 << 20] {
        for words in [None, Some([length as u64, 2, 3])] {
            for late in [false, true] {
                sequence += 1;
                let mine: Vec<Vec<u8>> = (0..n).map(|peer| pattern(me * n + peer, length)).collect();
                let mut theirs: Vec<Vec<u8>> = vec![vec![0xee; length]; n];
                let at = |peer| envelope(peer, tag(sequence, 0), words);
                let mut requests = Vec::new();
                if late {
                    requests.extend((0..n).map(|peer| send(&transport, at(peer), &mine[peer])));
                    for _ in 0..100 {
                        transport.progress();
                    }
                }
                requests
                    .extend(theirs.iter_mut().enumerate().map(|(peer, place)| receive(&transport, at(peer), place)));
                if !late {
                    requests.extend((0..n).map(|peer| send(&transport, at(peer), &mine[peer])));
                }
                requests.into_iter().for_each(|request| finish(&transport, request));
                for (peer, arrived) in theirs.iter().enumerate() {
                    assert!(*arrived == pattern(peer * n + me, length), "{length} bytes of {peer}, late: {late}");
                }
            }
        }
    }
    // Equal tags keep their order.
    let next = (me + 1) % n;
    let before = (me + n - 1) % n;
    let numbers: Vec<[u8; 1]> = (0..50).map(|i| [i]).collect();
    let sends: Vec<_> =
        numbers.iter().map(|number| send(&transport, envelope(next, tag(0, 1), None), number)).collect();
    for expected in 0..50 {
        let mut number = [0];
        finish(&transport, receive(&transport, envelope(before, tag(0, 1), None), &mut number));
        assert_eq!(number, [expected]);
    }
    sends.into_iter().for_each(|request| finish(&transport, request));
    meet(&transport, 60_000);
}

#[test]
fn everybody_exchanges_with_everybody() {
    for ranks in [1, 2, 5] {
        passes(ranks, "exchange");
    }
}

/// Messages of another call, or of another length, are found, and nobody is left waiting.
fn mismatches() {
    let transport = join();
    let me = transport.world().rank();
    let words = |call: u64| Some([1 | call << 16, 5, 6]);
    let (small, large) = (100, 1 << 20);
    for (sequence, (sent, expected, call)) in [
        (small, small, 2),
        (large, large, 2),
        (small, large, 2),
        (large, small, 2),
        (small, large, 1),
        (large, small, 1),
        (small, small + 1, 1),
        (large, large + 1, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let at = |call| envelope(1 - me, tag(sequence as u64, 0), words(call));
        if me == 0 {
            finish(&transport, send(&transport, at(1), &pattern(0, sent)));
        } else {
            let mut place = vec![0; expected];
            let error = wait(&transport, receive(&transport, at(call), &mut place), LONG).unwrap_err();
            assert_eq!((error.kind(), error.peers()), (&ErrorKind::Mismatch, &[0][..]), "{sent} {expected}: {error}");
            let told = error.to_string();
            assert!(
                call != 1 || told.contains(&format!("rank 0 sent {sent} bytes where {expected} are expected")),
                "{told}"
            );
        }
    }
    // The same without descriptors.
    for (sequence, (sent, expected)) in
        [(8, 4), (4, 8), (large, 8), (8, large), (large, large / 2)].into_iter().enumerate()
    {
        let at = envelope(1 - me, tag(100 + sequence as u64, 0), None);
        if me == 0 {
            finish(&transport, send(&transport, at, &pattern(0, sent)));
        } else {
            let mut place = vec![0; expected];
            let error = wait(&transport, receive(&transport, at, &mut place), LONG).unwrap_err();
            assert_eq!((error.kind(), error.peers()), (&ErrorKind::Mismatch, &[0][..]), "{sent} {expected}: {error}");
        }
    }
    meet(&transport, 60_000);
}

#[test]
fn a_message_of_another_call_is_a_mismatch() {
    passes(2, "mismatch");
}

/// Receives that nobody answers end when asked to; their memory is not written later. Sends to a rank that gives up end too.
fn cancels() {
    let transport = join();
    let me = transport.world().rank();
    let other = 1 - me;
    for words in [None, Some([1, 2, 3])] {
        for length in [8, 1 << 20] {
            let at = envelope(other, tag(1, 0), words);
            let mut place = vec![7; length];
            let begin = Instant::now();
            let limit = Duration::from_millis(50);
            let error = wait(&transport, receive(&transport, at, &mut place), limit).unwrap_err();
            assert_eq!((error.kind(), error.peers()), (&ErrorKind::Timeout, &[other][..]), "{error}");
            assert!(begin.elapsed() >= limit);
            meet(&transport, 2);
            // What is sent now finds the next receive, not the cancelled one.
            let mine = pattern(me, length);
            let sent = send(&transport, at, &mine);
            let mut next = vec![0; length];
            finish(&transport, receive(&transport, at, &mut next));
            finish(&transport, sent);
            assert!(next == pattern(other, length) && place.iter().all(|byte| *byte == 7));
        }
    }
    // Nobody receives this; the other one has given the communicator up.
    let at = envelope(other, Tag { communicator: 44, ..tag(1, 0) }, None);
    let data = pattern(me, 1 << 20);
    if me == 0 {
        finish(&transport, send(&transport, at, &data));
    } else {
        transport.abandon(44);
    }
    meet(&transport, 3);
    if me == 1 {
        transport.adopt(44);
        finish(&transport, send(&transport, at, &data));
    } else {
        let mut place = vec![0; data.len()];
        finish(&transport, receive(&transport, at, &mut place));
        assert!(place == pattern(1, data.len()));
    }
    meet(&transport, 4);
}

#[test]
fn what_is_cancelled_ends_and_its_memory_is_left_alone() {
    passes(2, "cancel");
}

/// Large messages between all, so that every connection is complete.
fn exchange_much(transport: &UcxTransport, sequence: u64) {
    let (me, n) = (transport.world().rank(), transport.world().size());
    let mine = pattern(me, 1 << 20);
    let mut theirs = vec![vec![0; mine.len()]; n];
    let at = |peer| envelope(peer, tag(sequence, 3), None);
    let receives: Vec<_> =
        theirs.iter_mut().enumerate().map(|(peer, place)| receive(transport, at(peer), place)).collect();
    let sends: Vec<_> = (0..n).map(|peer| send(transport, at(peer), &mine)).collect();
    receives.into_iter().chain(sends).for_each(|request| finish(transport, request));
    assert!((0..n).all(|peer| theirs[peer] == pattern(peer, mine.len())));
}

/// Rank 1 dies with messages to and from it under way, before or after its connections are complete.
fn a_peer_dies(connected: bool) {
    let transport = join();
    let me = transport.world().rank();
    if connected {
        exchange_much(&transport, 0);
    }
    meet(&transport, 1);
    if me == 1 {
        // SAFETY: ends the process at once, like a crash: no handler runs.
        unsafe { libc::_exit(3) };
    }
    let begin = Instant::now();
    let mut place = vec![0; 1 << 20];
    let error = wait(&transport, receive(&transport, envelope(1, tag(2, 0), None), &mut place), LONG).unwrap_err();
    assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerLost, &[1][..]), "{error}");
    println!("a receive ended after {:?}", begin.elapsed());
    let begin = Instant::now();
    let error = wait(&transport, send(&transport, envelope(1, tag(3, 0), Some([1, 2, 3])), &place), LONG).unwrap_err();
    assert_eq!((error.kind(), error.peers()), (&ErrorKind::PeerLost, &[1][..]), "{error}");
    println!("a send ended after {:?}", begin.elapsed());
    // The others go on.
    if transport.world().size() > 2 {
        let other = 2 - me;
        let mine = pattern(me, 100_000);
        let sent = send(&transport, envelope(other, tag(4, 0), None), &mine);
        let mut place = vec![0; mine.len()];
        finish(&transport, receive(&transport, envelope(other, tag(4, 0), None), &mut place));
        finish(&transport, sent);
        assert!(place == pattern(other, 100_000));
    }
    let begin = Instant::now();
    drop(transport);
    println!("closing took {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_dead_peer_is_lost_and_the_others_go_on() {
    if is_absent() {
        return;
    }
    for transports in [None, Some("shm,self"), Some("tcp"), Some("shm,tcp,self")] {
        for (role, watching) in [("death", "ours"), ("late-death", "ours"), ("death", "ucx"), ("late-death", "ucx")] {
            if watching == "ucx" && transports.is_none_or(|list| !list.contains("tcp")) {
                // Checked by `shared_memory_can_not_be_watched_by_ucx`.
                continue;
            }
            let environment = transports.map(|list| ("UCX_TLS", list));
            let environment = [environment.as_slice(), &[(WATCHING, watching)]].concat();
            let (outcome, lines) = run(3, role, &environment);
            println!("{role}, {transports:?} watched by {watching}:\n{lines}");
            assert_eq!(
                outcome.exits,
                [Exit::Code(0), Exit::Code(3), Exit::Code(0)],
                "{role} {transports:?} {watching}\n{lines}"
            );
        }
    }
}

/// An operation of `rankwise-schedule`, from its plan to the right numbers.
fn a_plan_runs() {
    use rankwise_core::backend::{RawBuf, RawCall};
    use rankwise_core::{DType, Group, OpKind, ReduceOp, descriptor};
    use rankwise_schedule::{Algorithm, Choice, Executor, HostMemory, Stamp, Start, Status};
    let transport = join();
    let (me, n) = (transport.world().rank(), transport.world().size());
    let group = Group::world(n);
    let mut executor: Executor<UcxTransport, HostMemory> = Executor::new(transport);
    for (sequence, count) in [1, 3, 1000, 4096, 300_000].into_iter().enumerate() {
        let input: Vec<f64> = (0..count).map(|i| (i % 1000 + me) as f64).collect();
        let mut output = vec![0.0; count];
        let mut call = RawCall::new(OpKind::AllReduce, DType::F64, count);
        call.op = Some(ReduceOp::Sum);
        call.src = RawBuf::host(input.as_ptr().cast(), 8 * count);
        call.dst = RawBuf::host(output.as_mut_ptr().cast(), 8 * count);
        let stamp = Stamp { communicator: 1, sequence: sequence as u64, words: descriptor::words(&call, 0) };
        let choice = Choice::whole(Algorithm::Ring);
        let start = Start { group: &group, me, stamp, choice, deadline: Duration::MAX };
        // SAFETY: the arrays live until the wait below says that the call is done.
        let ticket =
            unsafe { executor.start(&call, &start, |memory, plan| memory.arm(&call, n, plan.scratch())) }.unwrap();
        let mut watch = Watch::new(executor.transport(), 0..n, LONG);
        let status = executor.wait(ticket, |transport, fruitless| watch.pause(transport, fruitless));
        assert!(matches!(status, Status::Done), "{status:?}");
        executor.finish(ticket);
        let sum = |i: usize| (n * (i % 1000) + n * (n - 1) / 2) as f64;
        assert!(output.iter().enumerate().all(|(i, value)| *value == sum(i)));
    }
    meet(executor.transport(), 60_000);
}

#[test]
fn plans_run_on_it() {
    for ranks in [1, 2, 3] {
        passes(ranks, "plan");
    }
}

/// Says how it went, for the test to read.
fn settings() {
    let world = World::from_env().unwrap();
    let watching = std::env::var(WATCHING).ok().map(|_| Watching::Ucx);
    let joined = UcxTransport::join(&world, Options { watching, ..Options::default() });
    let error = match joined {
        Err(error) => error,
        Ok(transport) => {
            let at = envelope(1 - world.rank(), tag(0, 0), None);
            send(&transport, at, &[0]).err().unwrap_or_else(|| Error::invalid("nothing went wrong"))
        }
    };
    println!("{}: {error}", error.kind().name());
    world.store().exchange("end", "end", &rankwise_core::Group::world(2), &[], Default::default(), LONG).unwrap();
}

fn refused(environment: &[(&str, &str)], texts: &[&str]) {
    if is_absent() {
        return;
    }
    let (outcome, lines) = run(2, "settings", environment);
    assert!(outcome.success(), "{outcome:?}\n{lines}");
    for rank in 0..2 {
        let said: Vec<&str> = lines.lines().filter(|line| line.starts_with(&format!("[{rank}]"))).collect();
        let said = said.join("\n");
        assert!(texts.iter().all(|text| said.contains(text)), "{texts:?} not in\n{lines}");
    }
}

#[test]
fn transports_that_do_not_exist_are_refused_in_ucx_s_words() {
    let why = "UCX_TLS=no-such-thing from the environment";
    refused(&[("UCX_TLS", "no-such-thing")], &["Engine: ", "UCX says: ", "no-such-thing", why]);
    refused(
        &[("UCX_NET_DEVICES", "eth77"), ("UCX_TLS", "tcp")],
        &["Engine: ", "eth77", "UCX_NET_DEVICES=eth77 from the environment"],
    );
}

#[test]
fn ranks_that_can_not_reach_each_other_are_told_so() {
    refused(&[("UCX_TLS", "self")], &["Engine: ", "reaching another rank", "UCX_TLS=self from the environment"]);
}

#[test]
fn shared_memory_can_not_be_watched_by_ucx() {
    refused(&[("UCX_TLS", "shm,self"), (WATCHING, "ucx")], &["Engine: ", "reaching another rank"]);
}

fn leaves_traces() {
    let transport = join();
    meet(&transport, 1);
    let me = transport.world().rank();
    let data = pattern(me, 1 << 20);
    let sent = send(&transport, envelope(1 - me, tag(5, 0), None), &data);
    let mut place = vec![0; data.len()];
    finish(&transport, receive(&transport, envelope(1 - me, tag(5, 0), None), &mut place));
    finish(&transport, sent);
    meet(&transport, 2);
    // SAFETY: kills this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Names in /dev/shm and System V segments, which are the system's, not of one job: other processes may come and go meanwhile.
fn named_memory() -> Vec<String> {
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let files = files.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name.contains("ucx"));
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let segments: Vec<String> =
        segments.lines().skip(1).filter_map(|line| Some(line.split_whitespace().nth(1)?.into())).collect();
    files.chain(segments).collect()
}

#[test]
fn ranks_that_are_killed_leave_no_memory_with_a_name() {
    if is_absent() {
        return;
    }
    for transports in TRANSPORTS {
        let before = named_memory();
        let environment = transports.map(|list| ("UCX_TLS", list));
        let (outcome, lines) = run(2, "traces", environment.as_slice());
        assert!(!outcome.success(), "{outcome:?}\n{lines}");
        let left: Vec<String> = named_memory().into_iter().filter(|name| !before.contains(name)).collect();
        assert_eq!(left, [] as [&str; 0], "{transports:?}\n{lines}");
    }
}
