"""The digits as a flow: a network for each learning rate, all at once, and the join keeps the best.

Run `python examples/digits_flow.py run`, with other rates `run --rates '[0.1, 0.3]'`, on a cluster `run --with slurm`
or `run --with ray` where the stack has one. Then `python examples/digits_flow.py card view join` shows its page.
"""
# needs: demo

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from stoker.flow import FlowSpec, JSONType, Parameter, Table, card, current, step


class DigitsFlow(FlowSpec):
    """Handwritten digits: train at several learning rates, keep the best."""

    rates = Parameter("rates", type=JSONType, default="[0.003, 0.03, 0.1, 0.3]", help="learning rates to try")
    epochs = Parameter("epochs", default=20, help="how often each network sees all digits")

    @step
    def start(self):
        digits = load_digits()
        self.parts = train_test_split(digits.data / 16.0, digits.target, test_size=0.2, random_state=7)
        self.next(self.train, foreach="rates")

    @step
    def train(self):
        images, held_out, labels, answers = self.parts
        self.rate = self.input
        model = MLPClassifier((64,), solver="sgd", learning_rate_init=self.rate, max_iter=1, random_state=7)
        for _ in range(self.epochs):
            model.partial_fit(images, labels, classes=range(10))
        self.accuracy = float(model.score(held_out, answers))
        print(f"rate {self.rate}: accuracy {self.accuracy:.3f}")
        self.model = model
        self.next(self.join)

    @card
    @step
    def join(self, inputs):
        current.card.append(Table([[one.rate, one.accuracy] for one in inputs], headers=["rate", "accuracy"]))
        best = max(inputs, key=lambda one: one.accuracy)
        self.model, self.rate, self.accuracy = best.model, best.rate, best.accuracy
        self.next(self.end)

    @step
    def end(self):
        print(f"best learning rate: {self.rate}, accuracy {self.accuracy:.3f}")


if __name__ == "__main__":
    DigitsFlow()
