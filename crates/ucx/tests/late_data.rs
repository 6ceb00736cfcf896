//! What a dead rank had sent may still be copied by UCX into the memory of a receive that was cancelled: a request ends only when that is over. The test
//! binary launches itself. Without UCX it says so and passes.
#![cfg(target_os = "linux")]

use rankwise_core::ErrorKind;
use rankwise_schedule::{Envelope, Lent, Tag, Transport};
use rankwise_ucx::{Options, UcxTransport};
use rankwise_world::World;
use rankwise_world::launch::{Event, Exit, Launch, Output};
use std::time::{Duration, Instant};

const ROLE: &str = "RANKWISE_TEST_ROLE";
const LONG: Duration = Duration::from_secs(60);
const BYTES: usize = 64 << 20;
const SENT: u8 = 7;
const OURS: u8 = 0xaa;

#[test]
fn as_a_rank() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => println!("nothing to do: this is the program that the other test launches"),
        Ok(_) => half_a_message(),
    }
}

fn half_a_message() {
    let world = World::from_env().unwrap();
    let transport = UcxTransport::join(&world, Options::default()).unwrap();
    let tag = Tag { communicator: 3, sequence: 1, lane: 0, round: 0 };
    if world.rank() == 1 {
        world.store().set("sender", &std::process::id().to_le_bytes()).unwrap();
        let data = vec![SENT; BYTES];
        let lent = Lent { ptr: data.as_ptr().cast_mut(), bytes: BYTES };
        // SAFETY: the data lives as long as the process, which is killed while it sends.
        let _request = unsafe { transport.send(Envelope { peer: 0, tag, words: None }, lent) };
        loop {
            transport.progress();
        }
    }
    let sender = world.store().wait("sender", LONG).unwrap();
    let sender = i32::from_le_bytes(sender.try_into().unwrap());
    // Read and written by address alone: UCX writes it, too.
    let place = Box::leak(vec![0_u8; BYTES].into_boxed_slice()).as_mut_ptr();
    let at = |index: usize| place.wrapping_add(index);
    // SAFETY: the memory is never freed.
    let request =
        unsafe { transport.receive(Envelope { peer: 1, tag, words: None }, Lent { ptr: place, bytes: BYTES }) };
    let mut request = request.unwrap().expect("64 MiB are not there at once");
    let begun = Instant::now();
    // SAFETY: a byte of that memory, here and below.
    while unsafe { at(1 << 20).read_volatile() } != SENT {
        transport.progress();
        assert!(begun.elapsed() < LONG, "nothing comes");
    }
    // The sender fills what there is room for.
    std::thread::sleep(Duration::from_millis(50));
    // SAFETY: signals a process of this job.
    assert_eq!(unsafe { libc::kill(sender, libc::SIGKILL) }, 0);
    transport.cancel(&mut request);
    // Longer than any time that could count as long enough by itself.
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    let ended = loop {
        match transport.test(&mut request) {
            Ok(false) if begun.elapsed() > Duration::from_secs(10) => break None,
            Ok(false) => drop(transport.progress()),
            Ok(true) => break Some(None),
            Err(error) => break Some(Some(error)),
        }
    };
    let Some(error) = ended else {
        println!("the memory is still held");
        return;
    };
    // SAFETY: as above, here and below.
    let came = (0..BYTES).step_by(4096).filter(|index| unsafe { at(*index).read_volatile() } == SENT).count();
    println!("given back after {:?} with {came} of {} pages: {error:?}", begun.elapsed(), BYTES / 4096);
    assert!(error.is_none_or(|error| error.kind() == &ErrorKind::PeerLost));
    // SAFETY: the memory is ours again.
    unsafe { place.write_bytes(OURS, BYTES) };
    for _ in 0..20_000 {
        transport.progress();
    }
    // SAFETY: as above.
    let changed = (0..BYTES).filter(|index| unsafe { at(*index).read_volatile() } != OURS).count();
    assert_eq!(changed, 0, "bytes were written after the memory was given back");
}

#[test]
fn nothing_is_written_after_memory_was_given_back() {
    match rankwise_ucx::library() {
        Err(error) if error.kind() == &ErrorKind::NoBackend => return println!("skipped: {error}"),
        found => drop(found.unwrap()),
    }
    for transports in ["posix,self", "sysv,self", "tcp"] {
        let launch = Launch::new(2, std::env::current_exe().unwrap())
            .args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"])
            .env(ROLE, "half a message")
            .env("UCX_TLS", transports)
            .env_remove("UCX_NET_DEVICES")
            .timeout(LONG)
            .output(Output::Lines);
        let mut lines = Vec::new();
        let outcome = launch.spawn().unwrap().run(&mut |event| {
            if let Event::Line { text, .. } = event {
                lines.push(String::from_utf8_lossy(&text).into_owned());
            }
        });
        let lines = lines.join("\n");
        println!("{transports}:\n{lines}");
        assert_eq!(outcome.exits[0], Exit::Code(0), "{transports}: {outcome:?}\n{lines}");
    }
}
