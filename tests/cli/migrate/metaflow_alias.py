import metaflow as mf
import metaflow


class Aliased(mf.FlowSpec):
    count = mf.Parameter("count", default=2)

    @mf.step
    def start(self):
        self.items = list(range(self.count))
        self.next(self.end)

    @metaflow.retry(times=1)
    @mf.step
    def end(self):
        print("items", self.items)


if __name__ == "__main__":
    Aliased()
