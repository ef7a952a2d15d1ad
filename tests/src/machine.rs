//! The machine, shared by the tests of one program. Most of them wait most of the time, so that more of them run at once than there
//! are cores; a test that measures time has the machine to itself.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The number of tests with clusters that run at once, for each core.
const TESTS_PER_CORE: usize = 2;

/// A test's use of the machine, which ends when this value is dropped.
#[must_use]
pub struct MachineUse(Use);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Shared,
    Alone,
}

/// The uses of the machine now.
struct Machine {
    /// The number of tests that share it.
    sharing: usize,
    /// The number of tests that wait to share it.
    waiting: usize,
    /// `true` while a test has it to itself.
    is_locked: bool,
}

static MACHINE: Mutex<Machine> = Mutex::new(Machine { sharing: 0, waiting: 0, is_locked: false });
static CHANGED: Condvar = Condvar::new();

/// Waits until this test may run beside others.
pub fn share_machine() -> MachineUse {
    let most = std::thread::available_parallelism().map_or(2, usize::from) * TESTS_PER_CORE;
    let mut machine = lock_state();
    machine.waiting += 1;
    let is_busy = |machine: &mut Machine| machine.is_locked || machine.sharing >= most;
    machine = CHANGED.wait_while(machine, is_busy).unwrap_or_else(PoisonError::into_inner);
    machine.waiting -= 1;
    machine.sharing += 1;
    MachineUse(Use::Shared)
}

/// Waits until no other test uses the machine or waits to share it: tests that measure run last, so that the others need not wait
/// for them one by one.
pub fn lock_machine() -> MachineUse {
    let is_used = |machine: &mut Machine| machine.is_locked || machine.sharing + machine.waiting > 0;
    let mut machine = CHANGED.wait_while(lock_state(), is_used).unwrap_or_else(PoisonError::into_inner);
    machine.is_locked = true;
    MachineUse(Use::Alone)
}

fn lock_state() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for MachineUse {
    fn drop(&mut self) {
        let mut machine = lock_state();
        match self.0 {
            Use::Shared => machine.sharing -= 1,
            Use::Alone => machine.is_locked = false,
        }
        CHANGED.notify_all();
    }
}
