//! The allocator: what happens when the system has no more memory, and when work takes too long.
//!
//! A failed allocation of Rust aborts the process, and no stable Rust
//! lets it unwind. So the allocator keeps blocks aside: it gives one up for each allocation that fails, and the work that
//! runs can end. Work that begins while blocks are missing is refused until they can be taken again.
//!
//! A library that does not look at the time cannot be stopped. But it allocates: a thread whose time has passed never
//! returns from its next allocation. It sleeps from then on, and keeps what it has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::{Error, Result};

/// Bytes of one block. Never touched, so that it takes addresses and no memory. Large enough that glibc maps it by
/// itself, and its end returns it to the system.
const BLOCK: Layout = match Layout::from_size_align(16 << 20, 4096) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};
/// What some requests at a time may need to end: a compiled grammar has 8 MiB at most, a rendered text 32 MiB.
const BLOCKS: usize = 8;

static ASIDE: [AtomicPtr<u8>; BLOCKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; BLOCKS];
/// True if a block was given up and not taken again.
static LOW: AtomicBool = AtomicBool::new(false);

/// The system's allocator, with the blocks behind it.
struct WithBlocks;

#[global_allocator]
static ALLOCATOR: WithBlocks = WithBlocks;

// SAFETY: every block comes from System and goes back to it with its layout. Nothing here allocates or panics.
unsafe impl GlobalAlloc for WithBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        until_it_works(|| System.alloc(layout))
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        until_it_works(|| System.alloc_zeroed(layout))
    }
    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        until_it_works(|| System.realloc(data, layout, size))
    }
    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        System.dealloc(data, layout);
    }
}

#[inline]
fn until_it_works(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    if LIMIT.get().is_some() {
        look_at_the_time();
    }
    let mut data = allocate();
    while data.is_null() && give_up_a_block() {
        data = allocate();
    }
    data
}

/// False: none is left.
#[cold]
fn give_up_a_block() -> bool {
    LOW.store(true, Ordering::Relaxed);
    for block in &ASIDE {
        let data = block.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !data.is_null() {
            // SAFETY: it came from System with this layout, and the swap made this thread its only owner.
            unsafe { System.dealloc(data, BLOCK) };
            return true;
        }
    }
    false
}

/// For the allocations of C++: std::set_new_handler. False: none is left.
#[no_mangle]
pub extern "C" fn loramux_text_give_up_memory() -> bool {
    give_up_a_block()
}

/// Takes the blocks that are missing. False: not all of them could be taken.
pub fn set_aside() -> bool {
    for block in &ASIDE {
        if !block.load(Ordering::Acquire).is_null() {
            continue;
        }
        // SAFETY: the layout has a size. A block that another thread stored meanwhile is not overwritten.
        unsafe {
            let data = System.alloc(BLOCK);
            if data.is_null() {
                return false;
            }
            if block.compare_exchange(std::ptr::null_mut(), data, Ordering::AcqRel, Ordering::Acquire).is_err() {
                System.dealloc(data, BLOCK);
            }
        }
    }
    true
}

/// Error: the process has too little memory to begin work for a request.
pub fn check() -> Result<()> {
    if !LOW.load(Ordering::Relaxed) {
        return Ok(());
    }
    if set_aside() {
        LOW.store(false, Ordering::Relaxed);
        return Ok(());
    }
    Err(Error::unavailable("the server has too little memory for this request now; try again later"))
}

/// Threads that may sleep until the process ends. Each keeps what it has allocated, which is some megabytes.
const MAX_ASLEEP: usize = 16;
/// Allocations between two looks at the clock.
const ALLOCATIONS: u32 = 32;

static ASLEEP: AtomicUsize = AtomicUsize::new(0);

/// The limit of a thread: until when, in the time that it has had of the processor, and where to say that it has passed.
#[derive(Clone, Copy)]
struct ThreadLimit {
    until: Duration,
    passed: *const AtomicBool,
}

thread_local! {
    // Constant and without a destructor, so that the allocator may read them.
    static LIMIT: Cell<Option<ThreadLimit>> = const { Cell::new(None) };
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

/// A limit of time for the work of one thread, of which other threads see whether it has passed.
pub struct TimeLimit {
    time: Duration,
    passed: AtomicBool,
}

impl TimeLimit {
    pub fn new(time: Duration) -> Self {
        TimeLimit { time, passed: AtomicBool::new(false) }
    }

    /// Runs the work on this thread. Once the time has passed it does not return, and neither does this. Nothing is
    /// unwound: what the work has locked stays locked.
    pub fn run<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        // A thread that sleeps keeps its Arc, which the caller's frame holds, so the pointer stays valid.
        LIMIT.set(Some(ThreadLimit { until: thread_time() + self.time, passed: &self.passed }));
        let result = work();
        LIMIT.set(None);
        result
    }

    pub fn passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }

    /// True if so many threads sleep that work which may take long should not begin.
    pub fn none_left() -> bool {
        ASLEEP.load(Ordering::Relaxed) >= MAX_ASLEEP
    }
}

/// The time of the processor that this thread has had.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is that of the calling thread, and `time` can be written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cold]
fn look_at_the_time() {
    COUNT.set(COUNT.get().wrapping_add(1));
    let Some(limit) = LIMIT.get() else { return };
    if COUNT.get() % ALLOCATIONS != 0 || thread_time() < limit.until {
        return;
    }
    ASLEEP.fetch_add(1, Ordering::Relaxed);
    // SAFETY: TimeLimit::run keeps it.
    unsafe { (*limit.passed).store(true, Ordering::Release) };
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
