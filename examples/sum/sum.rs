//! sum.c in Rust, over the C ABI alone: rustc --edition 2021 -L FOLDER_OF_LIBMERCURYSTACK sum.rs
mod mercurystack;
use mercurystack::*;
use std::{ptr::null, ptr::null_mut, slice};

fn main() {
    let (mut context, mut job, mut handle) = (null_mut(), null_mut(), 0);
    let mut options = JobOptions::initial();
    options.name = b"sum\0".as_ptr().cast();
    unsafe {
        check(mercury_job_options_from_env(&mut options)); // who this is, from your launcher
        check(mercury_attach(null(), &mut context)); // the host's daemon, or the engine in this process
        check(mercury_job_open(context, &options, &mut job)); // returns when all are there
        if options.role == ROLE_SERVER {
            check(mercury_job_wait_end(job, FOREVER));
        } else {
            let mut tensor = TensorOptions::initial();
            (tensor.id, tensor.numel) = (7, 1000);
            check(mercury_alloc(context, 4 * 1000, &mut tensor.data)); // bytes
            check(mercury_declare(job, &tensor, 1));
            let (gradient, rank) = (tensor.data.cast::<f32>(), mercury_job_get_rank(job));
            slice::from_raw_parts_mut(gradient, 1000).fill((rank + 1) as f32);
            check(mercury_push_pull(job, 7, DEFAULT_PRIORITY, &mut handle)); // the gradient leaves
            check(mercury_wait(job, handle, FOREVER)); // the sum is in its place
            println!("worker {rank}: {}", *gradient.add(999));
        }
        check(mercury_job_close(job));
        check(mercury_detach(context));
    }
}
