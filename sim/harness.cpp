// The compiled system as a library of C functions: clock, registers, memory served from the caller's array.
//
// A cycle: outputs are settled; a rising edge; read data change as a register would; a falling edge settles again.
// Macros: WORD_BYTES (of the bus), HAS_REGISTERS, HAS_INTERRUPT, RETIRE_PORTS and ACTIVITY_PORTS (lists of X(engine)),
// ENGINES, CAUSES.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "Vsystem.h"
#include "verilated.h"

namespace {

struct Retirement {
    uint64_t cycle;
    uint32_t engine;
    uint32_t job_index;
    uint64_t index;
};

// Cycles of one engine by cause, CAUSES a row: row 0 for no job, row i + 1 for command i.
struct Activity {
    std::vector<uint64_t> cycles;

    void count(bool running, uint64_t command, unsigned cause) {
        const size_t row = running ? (command + 1) * CAUSES : 0;
        if (row >= cycles.size()) cycles.resize(row + CAUSES);
        cycles[row + cause]++;
    }
};

struct Device {
    VerilatedContext context;
    std::unique_ptr<Vsystem> top;
    uint8_t* memory;
    uint64_t cycle = 0;
    std::vector<Retirement> retirements;
    Activity activity[ENGINES];

    Device(uint8_t* bytes) : memory(bytes) {
        context.randReset(0);
        top = std::make_unique<Vsystem>(&context, "system");
        top->clk = 0;
        top->eval();
    }

    bool interrupt() const {
#ifdef HAS_INTERRUPT
        return top->interrupt_request;
#else
        return false;
#endif
    }

    void write_word(uint8_t* word) {
        constexpr uint64_t all = WORD_BYTES == 64 ? ~uint64_t{0} : (uint64_t{1} << WORD_BYTES % 64) - 1;
        const uint64_t strobe = top->memory_write_strobe;
        const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&top->memory_write_data);
        if (strobe == all) {
            std::memcpy(word, bytes, WORD_BYTES);
            return;
        }
        for (int lane = 0; lane < WORD_BYTES; lane++) {
            if (strobe >> lane & 1) word[lane] = bytes[lane];
        }
    }

    void tick() {
#define X(engine)                                                                                    \
    if (top->retire_##engine##_valid) {                                                              \
        retirements.push_back({cycle, engine, top->retire_##engine##_job_index, top->retire_##engine##_index}); \
    }
        RETIRE_PORTS
#undef X
#define X(engine)                                                                           \
    activity[engine].count(top->activity_##engine##_running, top->activity_##engine##_command, \
                           top->activity_##engine##_cause);
        ACTIVITY_PORTS
#undef X
        const bool reads = top->memory_read_enable;
        uint8_t word[WORD_BYTES];
        if (reads) std::memcpy(word, memory + uint64_t{top->memory_read_address} * WORD_BYTES, WORD_BYTES);
        if (top->memory_write_enable) write_word(memory + uint64_t{top->memory_write_address} * WORD_BYTES);
        top->clk = 1;
        top->eval();
        if (reads) std::memcpy(&top->memory_read_data, word, WORD_BYTES);
        top->clk = 0;
        top->eval();
        cycle++;
    }
};

}  // namespace

extern "C" {

Device* rondo_create(uint8_t* memory) { return new Device(memory); }

void rondo_destroy(Device* device) {
    device->top->final();
    delete device;
}

uint64_t rondo_cycle(const Device* device) { return device->cycle; }

void rondo_step(Device* device, uint64_t cycles) {
    for (uint64_t i = 0; i < cycles; i++) device->tick();
}

// Until the interrupt is high, at most so many cycles; whether it is high.
int rondo_wait(Device* device, uint64_t cycles) {
    for (uint64_t i = 0; i < cycles && !device->interrupt(); i++) device->tick();
    return device->interrupt();
}

uint64_t rondo_retirement_count(const Device* device) { return device->retirements.size(); }

const Retirement* rondo_retirements(const Device* device) { return device->retirements.data(); }

void rondo_clear_retirements(Device* device) { device->retirements.clear(); }

uint64_t rondo_activity_size(const Device* device, int engine) { return device->activity[engine].cycles.size(); }

const uint64_t* rondo_activity(const Device* device, int engine) { return device->activity[engine].cycles.data(); }

void rondo_clear_activity(Device* device) {
    for (Activity& activity : device->activity) activity.cycles.clear();
}

uint64_t rondo_counter(const Device* device, int index) {
    const Vsystem& top = *device->top;
    switch (index) {
        case 0: return top.row_hits;
        case 1: return top.row_misses;
        case 2: return top.refreshes;
        case 3: return top.bytes_read;
        default: return top.bytes_written;
    }
}

// The schedule of sim.engines: request from the first cycle until taken, response taken in the cycle it comes.
// The response's code, or -1 when `limit` cycles pass without one.
int rondo_read_register(Device* device, uint32_t offset, uint32_t* value, uint64_t limit) {
#ifdef HAS_REGISTERS
    Vsystem& top = *device->top;
    top.registers_araddr = offset;
    top.registers_arvalid = 1;
    top.registers_rready = 1;
    int result = -1;
    for (uint64_t i = 0; i < limit && result < 0; i++) {
        top.eval();
        const bool taken = top.registers_arvalid && top.registers_arready;
        if (top.registers_rvalid) {
            *value = top.registers_rdata;
            result = top.registers_rresp;
        }
        device->tick();
        if (taken) top.registers_arvalid = 0;
    }
    top.registers_arvalid = 0;
    top.registers_rready = 0;
    top.eval();
    return result;
#else
    return -1;
#endif
}

int rondo_write_register(Device* device, uint32_t offset, uint32_t value, uint64_t limit) {
#ifdef HAS_REGISTERS
    Vsystem& top = *device->top;
    top.registers_awaddr = offset;
    top.registers_awvalid = 1;
    top.registers_wdata = value;
    top.registers_wstrb = 15;
    top.registers_wvalid = 1;
    top.registers_bready = 1;
    int result = -1;
    for (uint64_t i = 0; i < limit && result < 0; i++) {
        top.eval();
        const bool address_taken = top.registers_awvalid && top.registers_awready;
        const bool data_taken = top.registers_wvalid && top.registers_wready;
        if (top.registers_bvalid) result = top.registers_bresp;
        device->tick();
        if (address_taken) top.registers_awvalid = 0;
        if (data_taken) top.registers_wvalid = 0;
    }
    top.registers_awvalid = 0;
    top.registers_wvalid = 0;
    top.registers_bready = 0;
    top.eval();
    return result;
#else
    return -1;
#endif
}

}  // extern "C"
