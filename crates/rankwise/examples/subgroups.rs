//! Groups: registered by their members, addressed by their tuple of ranks, or made by `split`.
//!
//! The ranks form a grid two wide, as in an engine that divides each layer between two ranks (a row) and gives every row
//! its own part of the batch (a column).
//!
//! ```sh
//! cargo build -p rankwise --examples
//! cargo run -p rankwise-cli -- launch -n 4 -- target/debug/examples/subgroups
//! ```

use rankwise::{CommBackend, Config, Group, ReduceOp, Result, TensorRef};

fn main() -> Result<()> {
    let config = Config::new().backend_or("shm");
    let world = rankwise::world(&config)?;
    let backend = rankwise::join(&world, &config)?;
    let (me, n) = (world.rank(), world.size());

    // Only members register a group, and members of several groups register them in the same order: rows, then columns.
    let row = Group::new((0..n).filter(|rank| rank / 2 == me / 2))?;
    let column = Group::new((0..n).filter(|rank| rank % 2 == me % 2))?;
    let mut along_row = backend.communicator(&row)?;
    backend.register(&column)?;

    // A typed communicator and the calls by group share the same registration.
    let mut row_sum = [me as u32];
    along_row.all_reduce_in_place(&mut row_sum, ReduceOp::Sum)?;
    assert_eq!(row_sum[0] as usize, row.ranks().sum::<usize>());

    let greatest = backend.all_reduce(TensorRef::from_slice(&[me as u32], &[1])?, &column, ReduceOp::Max)?;
    let greatest = greatest.into_vec::<u32>()?[0];
    assert_eq!(Some(greatest as usize), column.ranks().max());

    // Split needs no knowledge of the others: same colour, same communicator; the key orders its members.
    let mut all = backend.world()?;
    let reversed = all.split(Some(me as u64 % 2), -(me as i64))?;
    let mut reversed = reversed.ok_or_else(|| rankwise::Error::invalid("a rank that gave a colour has a group"))?;
    let mut order = vec![0_u32; reversed.size()];
    reversed.all_gather(&[me as u32], &mut order)?;
    assert!(order.is_sorted_by(|a, b| a > b));

    println!(
        "rank {me}: row {row} sums to {}, column {column} has the greatest rank {greatest}, reversed {order:?}",
        row_sum[0]
    );
    all.finalize()
}
