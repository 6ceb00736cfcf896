//! The token operations of an inference engine: each rank holds its own number of tokens, some hold none.
//!
//! Every rank gathers all tokens, applies its share of a layer to them, and keeps the sum of all shares for its own
//! tokens. Shapes: `(counts[r], WIDTH) -> (sum(counts), WIDTH) -> (counts[r], WIDTH)`.
//!
//! ```sh
//! cargo build -p rankwise --examples
//! cargo run -p rankwise-cli -- launch -n 4 -- target/debug/examples/uneven_tokens
//! ```

use rankwise::{CommBackend, Config, Group, Result, TensorRef};

/// Elements of a token.
const WIDTH: usize = 8;

fn main() -> Result<()> {
    let config = Config::new().backend_or("shm");
    let world = rankwise::world(&config)?;
    let backend = rankwise::join(&world, &config)?;
    let group = Group::world(world.size());
    backend.register(&group)?;
    let (me, n) = (world.rank(), world.size());

    // Every rank knows how many tokens each has; ranks 1, 5, … have none and take part like the others.
    let counts: Vec<usize> = (0..n).map(|rank| [3, 0, 1, 5][rank % 4]).collect();
    let tokens: Vec<f32> = (0..counts[me] * WIDTH).map(|i| (100 * me + i) as f32).collect();

    let all = backend.token_all_gather(TensorRef::from_slice(&tokens, &[counts[me], WIDTH])?, &group, &counts)?;
    assert_eq!(all.shape(), [counts.iter().sum(), WIDTH]);

    // This rank's share of the layer multiplies by rank + 1, all shares together by 1 + 2 + … + n.
    let share: Vec<f32> = all.as_slice::<f32>()?.iter().map(|x| x * (me + 1) as f32).collect();
    let mine = backend.token_reduce_scatter(TensorRef::from_slice(&share, all.shape())?, &group, &counts)?;
    assert_eq!(mine.shape(), [counts[me], WIDTH]);

    // Small whole numbers, so that the sum is exact.
    let factor = (n * (n + 1) / 2) as f32;
    let expected: Vec<f32> = tokens.iter().map(|x| x * factor).collect();
    assert_eq!(mine.into_vec::<f32>()?, expected);
    println!("rank {me}: {} of {} tokens came back multiplied by {factor}", counts[me], counts.iter().sum::<usize>());
    Ok(())
}
