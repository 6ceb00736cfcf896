//! The workloads that come with the command.

/// File name and text of each.
pub(crate) const FILES: [(&str, &str); 7] = [
    ("llama3-8b-decode.toml", include_str!("../workloads/llama3-8b-decode.toml")),
    ("llama3-70b-decode.toml", include_str!("../workloads/llama3-70b-decode.toml")),
    ("llama3-70b-prefill.toml", include_str!("../workloads/llama3-70b-prefill.toml")),
    ("deepseek-v3-moe.toml", include_str!("../workloads/deepseek-v3-moe.toml")),
    ("bert-base-ddp.toml", include_str!("../workloads/bert-base-ddp.toml")),
    ("resnet50-ddp.toml", include_str!("../workloads/resnet50-ddp.toml")),
    ("sequence-parallel-attention.toml", include_str!("../workloads/sequence-parallel-attention.toml")),
];

/// Their names, which are those of the files without `.toml`.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().map(|(file, _)| file.trim_end_matches(".toml"))
}

/// File name and text of one.
pub(crate) fn find(name: &str) -> Option<(&'static str, &'static str)> {
    names().position(|known| known == name).map(|place| FILES[place])
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::super::{file, file::Workload};
    use super::*;
    use crate::bench::op::Op;

    fn builtin(name: &str) -> Workload {
        let (file, text) = find(name).unwrap();
        file::parse(file, text).unwrap()
    }

    fn plan(name: &str, variant: usize, ranks: usize) -> Result<Plan, String> {
        let workload = builtin(name);
        Plan::new(&workload, &workload.variants[variant], ranks)
    }

    #[test]
    fn all_parse_under_their_own_names_and_fit_two_and_four_ranks() {
        for name in names() {
            let workload = builtin(name);
            assert_eq!(workload.name, name);
            for variant in &workload.variants {
                for ranks in [1, 2, 4] {
                    let plan = Plan::new(&workload, variant, ranks).unwrap();
                    assert!(plan.calls() > 0 && plan.memory() < 3 << 30, "{name} {}: {}", variant.label, plan.memory());
                }
            }
        }
    }

    #[test]
    fn decoding_has_two_reductions_a_layer_of_batch_times_hidden() {
        for (name, layers, hidden) in [("llama3-8b-decode", 32, 4096), ("llama3-70b-decode", 80, 8192)] {
            for (variant, batch) in [1, 16, 64].into_iter().enumerate() {
                let plan = plan(name, variant, 4).unwrap();
                let first = &plan.steps[0];
                assert_eq!((first.cell.op, first.cell.bytes, first.repeat), (Op::AllReduce, batch * hidden * 2, 1));
                let layer = &plan.steps[1];
                assert_eq!((layer.cell.op, layer.repeat), (Op::AllReduce, 2 * layers));
                assert_eq!(layer.cell.bytes, batch * hidden * 2);
            }
        }
    }

    #[test]
    fn gradient_buckets_hold_every_parameter_once() {
        for (name, parameters) in [("bert-base-ddp", 109_482_240), ("resnet50-ddp", 25_557_032)] {
            let plan = plan(name, 0, 3).unwrap();
            let reduced: u64 = plan.steps.iter().map(|step| step.cell.bytes / 4 * step.repeat).sum();
            assert_eq!(reduced, parameters, "{name}");
        }
    }

    #[test]
    fn ranks_that_do_not_divide_the_model_are_refused() {
        for (name, ranks, named) in [
            ("llama3-8b-decode", 3, "heads"),
            ("llama3-70b-prefill", 5, "heads"),
            ("deepseek-v3-moe", 3, "experts"),
            ("sequence-parallel-attention", 16, "kv_heads"),
        ] {
            let refusal = plan(name, 0, ranks).unwrap_err();
            assert!(refusal.contains(named) && refusal.contains(&ranks.to_string()), "{refusal}");
        }
    }
}
