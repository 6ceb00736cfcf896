//! A random sequence of mixed calls.

use crate::case::{Case, CaseResult};
use crate::ctx::{CALL_TIMEOUT, Ctx};
use crate::sequences::generate::{Choices, generate};
use crate::sequences::play;

/// Calls of the sequence in small worlds and in others, whose reference takes longer.
const CALLS: [usize; 2] = [300, 100];

pub(super) const CASES: &[Case] =
    &[Case::must("SQ-1", "sequence: mixed calls on random groups, some refused and some different", mixed)];

fn mixed(ctx: &mut Ctx<'_>) -> CaseResult {
    // Even: odd ones ask for fixed determinism.
    let seed = ctx.next_seed() & !1;
    let thresholds = ctx.capabilities().thresholds().iter().map(|threshold| threshold.bytes).collect();
    let calls = CALLS[usize::from(ctx.size() > 5)] * if ctx.is_full() { 10 } else { 1 };
    let script = generate(seed, ctx.size(), calls, &Choices { thresholds, ..Choices::default() });
    let backend = ctx.fresh_backend()?;
    let all = ctx.communicator()?;
    let again =
        format!("seed {seed}: made small by --sequences 1 --calls {calls} --seed {seed} --ranks {}", ctx.size());
    play(ctx, &backend, Some(all), &script, None, CALL_TIMEOUT).map_err(|failure| failure.within(&again))?;
    let mut fresh = ctx.communicator()?;
    ctx.known_answer(&mut fresh)
}
