//! Sizes and offsets of the structures, compared with those that the C compiler finds in the installed headers.
#![cfg(target_os = "linux")]

use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;
use ucx_sys::*;

/// Rows of C expression and Rust value.
macro_rules! rows {
    ($($structure:ident { $($field:ident),* })*) => {
        vec![$(
            (format!("sizeof({})", stringify!($structure)), size_of::<$structure>()),
            $((format!("offsetof({}, {})", stringify!($structure), stringify!($field)), offset_of!($structure, $field)),)*
        )*]
    };
}

#[test]
fn structures_are_those_of_the_installed_headers() {
    let mut rows = rows! {
        ucp_params_t { field_mask, features, request_size, request_init, request_cleanup, tag_sender_mask, mt_workers_shared,
            estimated_num_eps, estimated_num_ppn, name }
        ucp_worker_params_t { field_mask, thread_mode, cpu_mask, events, user_data, event_fd, flags, name, am_alignment, client_id }
        ucp_ep_params_t { field_mask, address, err_mode, err_handler, user_data, flags, sockaddr, conn_request, name, local_sockaddr }
        ucp_request_param_t { op_attr_mask, flags, request, cb, datatype, user_data, reply_buffer, memory_type, recv_info, memh }
        ucp_tag_recv_info_t { sender_tag, length }
        ucs_status_t {}
    };
    let number = |value: u32| value as usize;
    rows.extend([
        ("UCP_FEATURE_TAG".into(), number(ucp_feature::UCP_FEATURE_TAG)),
        ("UCP_PARAM_FIELD_TAG_SENDER_MASK".into(), number(ucp_params_field::UCP_PARAM_FIELD_TAG_SENDER_MASK)),
        (
            "UCP_WORKER_PARAM_FIELD_THREAD_MODE".into(),
            number(ucp_worker_params_field::UCP_WORKER_PARAM_FIELD_THREAD_MODE),
        ),
        (
            "UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE".into(),
            number(ucp_ep_params_field::UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE),
        ),
        ("UCP_OP_ATTR_FIELD_USER_DATA".into(), number(ucp_op_attr_t::UCP_OP_ATTR_FIELD_USER_DATA)),
        ("UCP_OP_ATTR_FIELD_MEMORY_TYPE".into(), number(ucp_op_attr_t::UCP_OP_ATTR_FIELD_MEMORY_TYPE)),
        ("UCS_THREAD_MODE_MULTI".into(), number(ucs_thread_mode_t::UCS_THREAD_MODE_MULTI)),
        ("ucp_dt_make_contig(4)".into(), ucp_dt_make_contig(4) as usize),
        ("-UCS_ERR_CANCELED".into(), -isize::from(ucs_status_t::UCS_ERR_CANCELED.0) as usize),
        ("-UCS_ERR_LAST".into(), -isize::from(ucs_status_t::UCS_ERR_LAST.0) as usize),
    ]);
    let mut source =
        String::from("#include <stddef.h>\n#include <stdio.h>\n#include <ucp/api/ucp.h>\nint main(void) {\n");
    for (expression, _) in &rows {
        source += &format!("printf(\"%zu\\n\", (size_t)({expression}));\n");
    }
    source += "return 0;\n}\n";
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = match Command::new(&compiler).args(["-w", "-o"]).arg(&program).arg(&file).output() {
        Ok(compiled) => compiled,
        Err(error) => return println!("skipped: no C compiler ({}: {error})", Path::new(&compiler).display()),
    };
    let said = String::from_utf8_lossy(&compiled.stderr);
    if said.contains("ucp/api/ucp.h") && said.contains("No such file") {
        return println!("skipped: the headers of UCX are not installed (Debian: libucx-dev)");
    }
    assert!(compiled.status.success(), "{said}");
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    let theirs: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), rows.len());
    for ((expression, ours), theirs) in rows.into_iter().zip(theirs) {
        // Later versions append fields.
        let appended = expression.starts_with("sizeof(ucp_") && theirs > ours;
        assert!(ours == theirs || appended, "{expression}: the bindings have {ours}, the headers {theirs}");
    }
}
