from metaflow import FlowSpec, step, resources

class GPUFlow(FlowSpec):

    @resources(memory=32000, cpu=4, gpu=1)
    @step
    def start(self):
        self.answer = 42  # my_gpu_routine()
        self.next(self.end)

    @step
    def end(self):
        print("answer", self.answer)

if __name__ == '__main__':
    GPUFlow()
