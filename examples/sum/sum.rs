//! sum.c in Rust, over the C ABI alone: rustc -L FOLDER_OF_LIBMERCURYSTACK sum.rs
use std::{ffi::CStr, mem::zeroed, os::raw::{c_char, c_int, c_void}, ptr::null_mut, slice};

#[repr(C)]
struct JobOptions { size: usize, name: *const c_char, secret: *const c_char, role: i32, rank: i32, workers: i32, servers: i32,
    rendezvous: *const c_char, timeout_ms: i32, deterministic: i32, policy: *const c_char, others: [i32; 5] }
#[repr(C)]
struct TensorOptions { size: usize, id: u32, dtype: i32, numel: u64, op: i32, priority: i32, data: *mut c_void }

#[link(name = "mercurystack")]
extern "C" {
    fn mercury_last_error() -> *const c_char;
    fn mercury_attach(options: *const c_void, out: *mut *mut c_void) -> c_int;
    fn mercury_alloc(context: *mut c_void, bytes: usize, out: *mut *mut c_void) -> c_int;
    fn mercury_job_options_init(options: *mut JobOptions, size: usize) -> c_int;
    fn mercury_job_options_from_env(options: *mut JobOptions) -> c_int;
    fn mercury_job_open(context: *mut c_void, options: *const JobOptions, out: *mut *mut c_void) -> c_int;
    fn mercury_job_get_rank(job: *const c_void) -> c_int;
    fn mercury_tensor_options_init(options: *mut TensorOptions, size: usize) -> c_int;
    fn mercury_declare(job: *mut c_void, tensors: *const TensorOptions, count: usize) -> c_int;
    fn mercury_push_pull(job: *mut c_void, tensor: u32, priority: c_int, out: *mut u64) -> c_int;
    fn mercury_wait(job: *mut c_void, handle: u64, timeout_ms: c_int) -> c_int;
    fn mercury_job_wait_end(job: *mut c_void, timeout_ms: c_int) -> c_int;
    fn mercury_job_close(job: *mut c_void) -> c_int;
    fn mercury_detach(context: *mut c_void) -> c_int;
}

fn check(status: c_int) {
    assert!(status >= 0, "{}", unsafe { CStr::from_ptr(mercury_last_error()) }.to_string_lossy());
}

const FOREVER: c_int = -1;
const DEFAULT_PRIORITY: c_int = -1;
const ROLE_SERVER: i32 = 1;
const NUMEL: usize = 1000;

fn main() {
    unsafe {
        let (mut context, mut job, mut options) = (null_mut(), null_mut(), zeroed::<JobOptions>());
        check(mercury_job_options_init(&mut options, std::mem::size_of::<JobOptions>()));
        options.name = b"sum\0".as_ptr() as *const c_char;
        check(mercury_job_options_from_env(&mut options)); // who this is, from your launcher
        check(mercury_attach(null_mut(), &mut context)); // the host's daemon, or the engine in this process
        check(mercury_job_open(context, &options, &mut job)); // returns when all are there
        if options.role == ROLE_SERVER {
            check(mercury_job_wait_end(job, FOREVER));
        } else {
            let (mut tensor, mut handle) = (zeroed::<TensorOptions>(), 0u64);
            check(mercury_tensor_options_init(&mut tensor, std::mem::size_of::<TensorOptions>()));
            (tensor.id, tensor.numel) = (7, NUMEL as u64);
            check(mercury_alloc(context, NUMEL * std::mem::size_of::<f32>(), &mut tensor.data));
            check(mercury_declare(job, &tensor, 1));
            let gradient = slice::from_raw_parts_mut(tensor.data as *mut f32, NUMEL);
            gradient.fill((mercury_job_get_rank(job) + 1) as f32);
            check(mercury_push_pull(job, 7, DEFAULT_PRIORITY, &mut handle)); // the gradient leaves
            check(mercury_wait(job, handle, FOREVER)); // the sum is in its place
            println!("worker {}: {}", mercury_job_get_rank(job), std::ptr::read_volatile(&gradient[NUMEL - 1]));
        }
        check(mercury_job_close(job));
        check(mercury_detach(context));
    }
}
