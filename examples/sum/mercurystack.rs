//! What sum.rs needs of the C ABI: structs and calls as <mercurystack/mercury.h> has and explains them. Another program
//! adds its own.
use std::ffi::CStr;
use std::mem::{size_of, zeroed};
use std::os::raw::{c_char, c_int, c_void};

pub const FOREVER: c_int = -1;
pub const DEFAULT_PRIORITY: c_int = -1;
pub const ROLE_SERVER: i32 = 1;

pub enum Context {}
pub enum Job {}

#[repr(C)]
pub struct JobOptions {
    size: usize,
    pub name: *const c_char,
    pub secret: *const c_char,
    pub role: i32,
    pub rank: i32,
    pub workers: i32,
    pub servers: i32,
    pub rendezvous: *const c_char,
    pub timeout_ms: i32,
    pub deterministic: i32,
    pub policy: *const c_char,
    pub weight: i32,
    pub rejoin_ms: i32,
    pub quorum: i32,
    pub patience_ms: i32,
    pub stall_timeout_ms: i32,
}

#[repr(C)]
pub struct TensorOptions {
    size: usize,
    pub id: u32,
    pub dtype: i32,
    pub numel: u64,
    pub op: i32,
    pub priority: i32,
    pub data: *mut c_void,
}

#[link(name = "mercurystack")]
extern "C" {
    fn mercury_last_error() -> *const c_char;
    fn mercury_job_options_init(options: *mut JobOptions, size: usize) -> c_int;
    fn mercury_tensor_options_init(options: *mut TensorOptions, size: usize) -> c_int;
    pub fn mercury_attach(options: *const c_void, out: *mut *mut Context) -> c_int;
    pub fn mercury_alloc(context: *mut Context, bytes: usize, out: *mut *mut c_void) -> c_int;
    pub fn mercury_job_options_from_env(options: *mut JobOptions) -> c_int;
    pub fn mercury_job_open(
        context: *mut Context,
        options: *const JobOptions,
        out: *mut *mut Job,
    ) -> c_int;
    pub fn mercury_job_get_rank(job: *const Job) -> c_int;
    pub fn mercury_declare(job: *mut Job, tensors: *const TensorOptions, count: usize) -> c_int;
    pub fn mercury_push_pull(job: *mut Job, tensor: u32, priority: c_int, out: *mut u64) -> c_int;
    pub fn mercury_wait(job: *mut Job, handle: u64, timeout_ms: c_int) -> c_int;
    pub fn mercury_job_wait_end(job: *mut Job, timeout_ms: c_int) -> c_int;
    pub fn mercury_job_close(job: *mut Job) -> c_int;
    pub fn mercury_detach(context: *mut Context) -> c_int;
}

impl JobOptions {
    pub fn initial() -> Self {
        let mut options = unsafe { zeroed() };
        check(unsafe { mercury_job_options_init(&mut options, size_of::<Self>()) });
        options
    }
}

impl TensorOptions {
    pub fn initial() -> Self {
        let mut options = unsafe { zeroed() };
        check(unsafe { mercury_tensor_options_init(&mut options, size_of::<Self>()) });
        options
    }
}

/// Panics with the library's text, if a call failed.
pub fn check(status: c_int) {
    assert!(
        status >= 0,
        "{}",
        unsafe { CStr::from_ptr(mercury_last_error()) }.to_string_lossy()
    );
}
