//! System call filter of a sandboxed process.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libc::{EPERM, c_long};
use rustix::process::getpid;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter,
    apply_filter_all_threads,
};

use super::Needs;

/// Calls that no work needs. They access other processes or parts of the kernel with frequent
/// vulnerabilities. `io_uring` also bypasses filters.
const NEVER: [c_long; 37] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_setpriority,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
];
/// Calls to connect to servers.
const SOCKETS: [c_long; 6] = [
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
];
/// Calls to start and end programs, or to leave the process group that is killed at a deadline. Pairs
/// of sockets belong to them: the standard library reports a failed start over one, and a signal
/// handler that interrupts the thread which starts a program writes to one. A pair reaches nothing
/// outside, and other sockets cannot be created without the calls above.
const PROGRAMS: [c_long; 13] = [
    libc::SYS_socketpair,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setsid,
    libc::SYS_setpgid,
];
/// Bit of the x32 call numbers, which a filter by number would miss.
const X32: c_long = 0x4000_0000;
/// Numbers of calls that only x32 has: variants of the calls above and harmless ones.
const ONLY_X32: std::ops::RangeInclusive<c_long> = X32 + 512..=X32 + 547;

/// Makes the calls fail with `EPERM` in this process and its children.
pub(super) fn restrict(needs: Needs) -> Result<(), Error> {
    apply_filter_all_threads(&program(needs)?)
}

/// Makes the calls fail with `EPERM` in this thread and in the programs that it starts.
pub(super) fn restrict_thread(needs: Needs) -> Result<(), Error> {
    apply_filter(&program(needs)?)
}

fn program(needs: Needs) -> Result<BpfProgram, BackendError> {
    let mut refused: BTreeMap<c_long, Vec<SeccompRule>> = BTreeMap::new();
    // Refuse these calls with any arguments.
    refused.extend(NEVER.map(|call| (call, Vec::new())));
    // Allow limits of this process only.
    let of_others = unless(0)?;
    refused.insert(libc::SYS_prlimit64, vec![of_others]);
    if !needs.connections {
        refused.extend(SOCKETS.map(|call| (call, Vec::new())));
    }
    if !needs.programs {
        refused.extend(PROGRAMS.map(|call| (call, Vec::new())));
        // An aborting process sends the signal to itself.
        let id = getpid().as_raw_nonzero().get();
        let to_others = unless(u64::from(id.unsigned_abs()))?;
        refused.insert(libc::SYS_tgkill, vec![to_others]);
    }
    if ARCH == "x86_64" {
        let same: Vec<_> = refused.keys().map(|call| call | X32).collect();
        refused.extend(
            same.into_iter()
                .chain(ONLY_X32)
                .map(|call| (call, Vec::new())),
        );
    }
    let filter = SeccompFilter::new(
        refused,
        SeccompAction::Allow,
        SeccompAction::Errno(EPERM.unsigned_abs()),
        TargetArch::try_from(ARCH)?,
    )?;
    filter.try_into()
}

/// Returns a rule that matches if the first argument differs.
fn unless(argument: u64) -> Result<SeccompRule, BackendError> {
    let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, argument)?;
    SeccompRule::new(vec![other])
}
